"""Which address gives what?"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Any

from parformer.errors import ParformerError, need
from parformer.serve.answers import Answer, model_card
from parformer.serve.engine import Busy
from parformer.serve.figures import peak_memory
from parformer.serve.guard import App, Guard, read_body
from parformer.serve.jobs import Ended, Failed, Happened, Job, Piece
from parformer.serve.page import PAGE, POLICY
from parformer.serve.refusing import Refused, read_json
from parformer.serve.services import Services
from parformer.serve.wishes import Wish
from parformer.store.files import Json

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

Handler = Callable[[Services, Json], Awaitable[Json]]


def make_app(services: Services) -> App:
    """The whole server as one ASGI application."""
    need("starlette", extra="serve")
    from starlette.applications import Starlette
    from starlette.exceptions import HTTPException
    from starlette.routing import Route

    routes = [
        Route("/", page),
        Route("/health", health),
        Route("/metrics", metrics),
        Route("/v1/models", models),
        Route("/v1/models/{name:path}", one_model),
        *(Route(path, posted, methods=["POST"]) for path in POSTED),
    ]
    app = Starlette(
        routes=routes,
        exception_handlers={
            Refused: on_refused,
            HTTPException: on_unknown,
            ParformerError: on_error,
            Exception: on_fault,
        },
    )
    app.state.services = services
    return Guard(
        app,
        refuse=refused,
        figures=services.figures,
        hosts=services.hosts,
        key=services.key,
        routes=[route.path for route in routes],
    )


def refused(error: Refused) -> Response:
    from starlette.responses import JSONResponse

    headers = {"Retry-After": "1"} if error.status == 429 else {}
    if error.status in (408, 413):
        headers["Connection"] = "close"  # what is left of the body is not waited for
    return JSONResponse(error.to_dict(), error.status, headers)


async def on_refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, Refused)
    return refused(error)


async def on_unknown(request: Request, error: Any) -> Response:
    words = f"{request.method} {request.url.path[:80]!r} is not here"
    return refused(Refused(words, status=error.status_code))


async def on_error(request: Request, error: Exception) -> Response:
    return refused(Refused(str(error)))


async def on_fault(request: Request, error: Exception) -> Response:
    return refused(Refused("something went wrong in the server; its log says what", status=500))


def services_of(request: Request) -> Services:
    services: Services = request.app.state.services
    return services


async def page(request: Request) -> Response:
    from starlette.responses import HTMLResponse

    return HTMLResponse(PAGE, headers={"Content-Security-Policy": POLICY})


async def health(request: Request) -> Response:
    from starlette.responses import JSONResponse

    return JSONResponse({"status": "ok", "model": services_of(request).name})


async def metrics(request: Request) -> Response:
    from starlette.responses import PlainTextResponse

    services = services_of(request)
    engine, done = services.engine, services.engine.counters
    gauges = {
        "parformer_running": ("Texts being written.", engine.running),
        "parformer_waiting": ("Requests in the queue.", len(engine.waiting)),
        "parformer_prompt_tokens_total": ("Tokens of prompts read.", done.prompt_tokens),
        "parformer_written_tokens_total": ("Tokens written.", done.written_tokens),
        "parformer_steps_total": ("Runs of the model for a batch.", done.steps),
        "parformer_peak_memory_bytes": ("Memory held at most.", peak_memory()),
    }
    text = services.figures.text(gauges)
    return PlainTextResponse(text, media_type="text/plain; version=0.0.4; charset=utf-8")


async def models(request: Request) -> Response:
    from starlette.responses import JSONResponse

    services = services_of(request)
    card = model_card(services.name, services.created)
    return JSONResponse({"object": "list", "data": [card]})


async def one_model(request: Request) -> Response:
    from starlette.responses import JSONResponse

    services = services_of(request)
    services.check_model(request.path_params["name"])
    return JSONResponse(model_card(services.name, services.created))


async def posted(request: Request) -> Response:
    """Read the body whole and bounded, then do what the address is for."""
    from starlette.responses import JSONResponse

    services = services_of(request)
    raw = await read_body(request.stream(), request.headers.get("content-length"))
    values = read_json(raw)
    path = request.url.path
    if path in WRITING:
        reader = services.reader()
        wish = reader.chat(values) if WRITING[path] else reader.completion(values)
        return await write(request, services, wish)
    errand = services.errand(path, values)
    try:
        answer = await asyncio.wait_for(
            asyncio.wrap_future(services.engine.ask(errand)), services.timeout
        )
    except Busy:
        raise too_busy() from None
    except TimeoutError:
        raise Refused("the answer took too long; ask for less", status=504) from None
    return JSONResponse(answer)


WRITING = {"/v1/completions": False, "/v1/chat/completions": True}
"""Whether it is a conversation."""
POSTED = (*WRITING, "/v1/embeddings", "/translate", "/predict", "/tokenize", "/detokenize")


def too_busy() -> Refused:
    return Refused("the queue is full; try again soon", status=429, code="queue_full")


async def write(request: Request, services: Services, wish: Wish) -> Response:
    """Let the engine write, and hand its texts on, all at once or as they come."""
    from starlette.responses import JSONResponse, StreamingResponse

    loop, heard = asyncio.get_running_loop(), asyncio.Queue[Happened]()

    def tell(happened: Happened) -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(heard.put_nowait, happened)

    deadline = time.monotonic() + services.timeout
    jobs = [
        Job(wish, prompt, place * wish.n, tell, deadline)
        for place, prompt in enumerate(wish.prompts)
    ]
    try:
        services.engine.submit(jobs)
    except Busy:
        raise too_busy() from None
    answer = Answer(wish, services.name)
    if wish.stream:
        lines = stream(answer, heard, jobs)
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        return StreamingResponse(lines, media_type="text/event-stream", headers=headers)
    gone = asyncio.ensure_future(hung_up(request))
    collecting = asyncio.ensure_future(collect(answer, heard))
    try:
        await asyncio.wait({gone, collecting}, return_when=asyncio.FIRST_COMPLETED)
        if not collecting.done():
            raise Refused("nobody waits any longer", status=499)
        collecting.result()
    finally:
        cancel(jobs)
        gone.cancel()
        collecting.cancel()
    return JSONResponse(answer.whole())


async def hung_up(request: Request) -> None:
    """Wait until the client has gone."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def cancel(jobs: list[Job]) -> None:
    for job in jobs:
        job.cancelled = True


async def collect(answer: Answer, heard: asyncio.Queue[Happened]) -> None:
    """Hear of everything until all texts are complete."""
    left = len(answer.choices)
    while left:
        left -= note(answer, await heard.get())


def note(answer: Answer, happened: Happened) -> bool:
    """Write down what happened; whether a text is complete by it."""
    if isinstance(happened, Failed):
        raise Refused(happened.message, status=happened.status)
    choice = answer.choices[happened.index]
    if isinstance(happened, Piece):
        choice.text += happened.text
        choice.tokens += happened.tokens
        return False
    choice.reason, choice.written = happened.reason, happened.written
    return True


async def stream(
    answer: Answer, heard: asyncio.Queue[Happened], jobs: list[Job]
) -> AsyncIterator[str]:
    """Server-sent events; whoever hangs up ends the work."""
    left = len(answer.choices)
    try:
        if answer.wish.chat:
            for index in range(left):
                yield event(answer.opening(index))
        while left:
            happened = await heard.get()
            left -= note(answer, happened)
            if isinstance(happened, Piece):
                yield event(answer.chunk(happened.index, happened.text, happened.tokens))
            elif isinstance(happened, Ended):
                yield event(answer.chunk(happened.index, "", (), happened.reason))
        if answer.wish.usage:
            yield event(answer.closing())
        yield "data: [DONE]\n\n"
    except Refused as error:
        yield event(error.to_dict())
    finally:
        cancel(jobs)


def event(value: Json) -> str:
    return f"data: {json.dumps(value, ensure_ascii=False)}\n\n"
