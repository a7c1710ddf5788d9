"""Do the clients that people have work against a served model?"""

from __future__ import annotations

import itertools
import json
import math
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import openai
import pytest
import tokenizers
import torch
from prometheus_client.parser import text_string_to_metric_families

import parformer as pf
from parformer.data.characters import Bytes
from parformer.errors import ConfigError, MissingExtra
from parformer.generate import Sampling, generate_text
from parformer.model import build, load
from parformer.serve import request as serving
from parformer.serve.engine import Engine
from parformer.serve.request import ServeRequest, listen
from parformer.serve.wishes import plain_chat
from tests.conftest import lively, small_config
from tests.serve.serving import Served, served, write_model

GREEDY = Sampling(temperature=0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("models") / "small", max_len=64)


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Served]:
    with served(folder) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: Served) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


def written(folder: Path, prompt: str, tokens: int, **how: object) -> str:
    return generate_text(load(folder), Bytes(), [prompt], tokens, sampling=GREEDY, **how)[0]


# OpenAI's client


def test_models_are_listed(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["small"]
    assert client.models.retrieve("small").owned_by == "parformer"
    with pytest.raises(openai.NotFoundError, match="'large' is not here; ask for 'small'"):
        client.models.retrieve("large")


def test_a_completion_is_what_the_model_writes(client: openai.OpenAI, folder: Path) -> None:
    answer = client.completions.create(
        model="small", prompt=["def ", "ü"], max_tokens=20, temperature=0
    )
    assert [choice.text for choice in answer.choices] == [
        written(folder, prompt, 20) for prompt in ("def ", "ü")
    ]
    assert {choice.finish_reason for choice in answer.choices} == {"length"}
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (6, 40)


def test_a_stream_is_the_same_in_pieces(client: openai.OpenAI, folder: Path) -> None:
    pieces = list(
        client.completions.create(
            model="small",
            prompt="def ",
            max_tokens=20,
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    assert "".join(c.text for p in pieces for c in p.choices) == written(folder, "def ", 20)
    assert pieces[-2].choices[0].finish_reason == "length"
    assert pieces[-1].choices == []
    assert pieces[-1].usage is not None
    assert pieces[-1].usage.total_tokens == 24


def test_a_conversation_is_plain_text(client: openai.OpenAI, folder: Path) -> None:
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "Hello."}]},
    ]
    prompt = plain_chat(messages)
    assert prompt == "Be brief.\nUser: Hello.\nAssistant:"
    asked = {"model": "small", "messages": messages, "max_tokens": 9, "temperature": 0}
    answer = client.chat.completions.create(**asked, logprobs=True, top_logprobs=2)
    (choice,) = answer.choices
    assert (choice.message.role, choice.message.content) == (
        "assistant",
        written(folder, prompt, 9, stop=["\nUser:"]),
    )
    assert choice.logprobs is not None
    assert [len(token.top_logprobs) for token in choice.logprobs.content or ()] == [2] * 9
    pieces = list(client.chat.completions.create(**asked, stream=True))
    assert pieces[0].choices[0].delta.role == "assistant"
    text = "".join(p.choices[0].delta.content or "" for p in pieces)
    assert text == choice.message.content
    assert pieces[-1].choices[0].finish_reason == "length"


def test_stop_strings_end_a_text(client: openai.OpenAI, folder: Path) -> None:
    whole = written(folder, "def ", 30)
    stop = whole[7:9]
    answer = client.completions.create(
        model="small", prompt="def ", max_tokens=30, temperature=0, stop=[stop]
    )
    assert answer.choices[0].finish_reason == "stop"
    assert answer.choices[0].text == whole[: whole.index(stop)]


def test_seeds_repeat_and_choices_differ(client: openai.OpenAI) -> None:
    def texts(**how: object) -> list[str]:
        answer = client.completions.create(
            model="small", prompt="def ", max_tokens=12, n=3, top_p=0.9, **how
        )
        return [choice.text for choice in answer.choices]

    first = texts(seed=5)
    assert first == texts(seed=5)
    assert len(set(first)) == 3
    assert first != texts(seed=6)


def test_penalties_and_biases_change_what_is_drawn(client: openai.OpenAI) -> None:
    def text(**how: object) -> str:
        answer = client.completions.create(
            model="small", prompt="def ", max_tokens=12, temperature=0, **how
        )
        return answer.choices[0].text

    assert text(logit_bias={"65": 100}) == "A" * 12
    counted = text(logit_bias={"65": 4}, frequency_penalty=2.0, presence_penalty=2.0)
    assert counted.count("A") < 12


def test_echoed_prompts_are_scored_as_the_model_scores_them(server: Served, folder: Path) -> None:
    """As lm-eval's local-completions asks, with tokens or text."""
    prompt = "def read(self):"
    tokens = torch.tensor([list(prompt.encode())])
    with torch.no_grad():
        logs = load(folder)(tokens).logits[0].log_softmax(-1)
    wanted = logs[:-1].gather(1, tokens[0, 1:, None])[:, 0].tolist()
    for given, most in ((prompt, 1), (list(prompt.encode()), 0)):
        body = {"prompt": given, "echo": True, "logprobs": 1, "max_tokens": most, "temperature": 0}
        (choice,) = server.post("/v1/completions", body).json()["choices"]
        found = choice["logprobs"]
        length = len(prompt)
        assert found["token_logprobs"][0] is None
        assert found["token_logprobs"][1:length] == pytest.approx(wanted, abs=1e-5)
        assert found["text_offset"][:length] == list(range(length))
        assert found["tokens"][:length] == list(prompt)
        assert len(found["tokens"]) == length + most
        likeliest = [max(top.values()) for top in found["top_logprobs"][1:length]]
        assert likeliest == pytest.approx(logs[:-1].max(-1).values.tolist(), abs=1e-5)
        assert choice["text"].startswith(prompt)


def test_langchain_works(server: Served, folder: Path) -> None:
    langchain = pytest.importorskip("langchain_openai")
    given = {"base_url": f"{server.url}/v1", "api_key": "none", "temperature": 0, "max_tokens": 8}
    writer = langchain.OpenAI(model="small", **given)
    assert writer.invoke("def ") == written(folder, "def ", 8)
    assert "".join(writer.stream("def ")) == written(folder, "def ", 8)
    talker = langchain.ChatOpenAI(model="small", **given)
    wanted = written(folder, "User: Hi\nAssistant:", 8, stop=["\nUser:"])
    assert talker.invoke("Hi").content == wanted
    assert "".join(piece.content for piece in talker.stream("Hi")) == wanted


# Many at once


@pytest.mark.parametrize(
    ("family", "pattern", "batch"),
    [
        ("llama", "sf", 10),
        ("gpt2", "sf", 10),
        ("transformer-xl", "sfl", 4),
        ("sru", "raf", 4),
        ("gpt2", "yf", 4),
    ],
)
def test_answers_are_those_of_the_same_request_alone(
    family: str, pattern: str, batch: int, tmp_path: Path
) -> None:
    window = {"mem_len": 40} if family in ("transformer-xl", "sru") else {"max_len": 64}
    folder = write_model(tmp_path / "model", family, pattern=pattern, **window)
    prompts = ["a", "def read(", "class Writer:\n    def ", "ü = 1", "x" * 30, "import os"]
    with served(folder, batch=batch) as server:
        found: dict[int, str] = {}

        def ask(number: int) -> None:
            time.sleep(0.02 * number)
            body = {"prompt": prompts[number % 6], "max_tokens": 10 + number, "temperature": 0}
            answer = server.post("/v1/completions", body).json()
            found[number] = answer["choices"][0]["text"]

        threads = [threading.Thread(target=ask, args=(number,)) for number in range(12)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        counters = server.services.engine.counters
        assert counters.steps < counters.written_tokens  # some were written side by side
    assert found == {n: written(folder, prompts[n % 6], 10 + n) for n in range(12)}


def test_a_late_request_is_served_within_three_steps(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with served(folder, max_tokens=100_000) as server:
        engine = server.services.engine
        slow_down(engine, monkeypatch)  # or else many pass before the request is handed over
        body = {"prompt": "def ", "max_tokens": 50_000, "stream": True}
        with httpx.stream("POST", f"{server.url}/v1/completions", json=body, timeout=30) as long:
            lines = long.iter_lines()
            next(lines)
            heard: list[int] = []
            submit = engine.submit

            def noting(jobs: list) -> None:  # type: ignore[type-arg]
                before, (job,) = engine.counters.turns, jobs
                tell = job.tell
                job.tell = lambda what: (heard.append(engine.counters.turns - before), tell(what))
                submit(jobs)

            engine.submit = noting  # type: ignore[method-assign]
            late = {"prompt": "import ", "max_tokens": 2, "temperature": 0}
            answer = server.post("/v1/completions", late).json()
            assert answer["choices"][0]["text"] == written(folder, "import ", 2)
            assert heard[0] <= 3


def test_whoever_hangs_up_is_cancelled(folder: Path) -> None:
    with served(folder, max_tokens=1_000_000) as server:
        body = {"prompt": "def ", "max_tokens": 500_000}
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(f"{server.url}/v1/completions", json=body, timeout=0.3)
        url = f"{server.url}/v1/completions"
        with httpx.stream("POST", url, json=body | {"stream": True}, timeout=30) as streaming:
            next(streaming.iter_lines())
        assert soon(lambda: server.services.engine.idle)


def slow_down(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a turn take some milliseconds, as a large model's does."""
    gather = engine.gather
    monkeypatch.setattr(engine, "gather", lambda: (time.sleep(0.002), gather()))


def soon(holds: object) -> bool:
    """Whether it comes true within seconds."""
    for _ in range(200):
        if holds():  # type: ignore[operator]
            return True
        time.sleep(0.02)
    return False


def test_a_full_queue_says_come_back(folder: Path) -> None:
    with served(folder, batch=1, queue=2, max_tokens=1_000_000) as server:
        body = {"prompt": "def ", "max_tokens": 900_000, "stream": True}
        url = f"{server.url}/v1/completions"
        clients = [httpx.Client(timeout=30) for _ in range(3)]
        engine, opened = server.services.engine, []
        for client in clients:
            request = client.build_request("POST", url, json=body)
            opened.append(client.send(request, stream=True))
            assert soon(lambda: engine.running == 1)  # or else all three wait, one too many
        assert soon(lambda: engine.running == 1 and len(engine.waiting) == 2)
        refused = server.post("/v1/completions", {"prompt": "x"})
        assert refused.status_code == 429
        assert refused.headers["retry-after"] == "1"
        assert refused.json()["error"]["type"] == "rate_limit_error"
        for answer, client in zip(opened, clients, strict=True):
            answer.close()
            client.close()
        assert soon(lambda: engine.idle)
        assert server.post("/v1/completions", {"prompt": "x"}).status_code == 200


def test_an_answer_that_takes_too_long_is_given_up(folder: Path) -> None:
    with served(folder, timeout=0.2, max_tokens=1_000_000) as server:
        late = server.post("/v1/completions", {"prompt": "def ", "max_tokens": 500_000})
        assert late.status_code == 504
        assert "took too long" in late.json()["error"]["message"]
        assert soon(lambda: server.services.engine.idle)


def test_a_bug_in_a_turn_leaves_later_requests_served(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with served(folder) as server:
        engine = server.services.engine
        with monkeypatch.context() as patch:
            patch.setattr(engine, "gather", lambda: 1 / 0)
            failed = server.post("/v1/completions", {"prompt": "x"})
            assert failed.status_code == 500
        assert "ZeroDivisionError" in caplog.text
        assert server.post("/v1/completions", {"prompt": "x"}).status_code == 200


def test_who_stops_the_server_lets_answers_be_finished(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = {"prompt": "def ", "max_tokens": 300, "temperature": 0}
    with served(folder) as server:
        engine = server.services.engine
        slow_down(engine, monkeypatch)  # or else all 300 may be written between two looks
        found: list[str] = []

        def ask() -> None:
            found.append(server.post("/v1/completions", body).json()["choices"][0]["text"])

        thread = threading.Thread(target=ask)
        thread.start()
        assert soon(lambda: engine.running == 1)
    thread.join()
    assert found == [written(folder, "def ", 300)]


# The other routes


def test_what_else_a_server_tells(server: Served) -> None:
    assert httpx.get(f"{server.url}/health").json() == {"status": "ok", "model": "small"}
    tokens = server.post("/tokenize", {"text": "ü!"}).json()
    assert tokens == {"tokens": [195, 188, 33], "count": 3}
    assert server.post("/detokenize", {"tokens": tokens["tokens"]}).json() == {"text": "ü!"}
    assert server.post("/v1/completions", {"prompt": "a", "max_tokens": 2}).is_success
    told = httpx.get(f"{server.url}/metrics").text
    found = {family.name: family for family in text_string_to_metric_families(told)}
    assert found["parformer_written_tokens"].samples[0].value > 0
    routes = {s.labels["route"] for s in found["parformer_requests"].samples}
    assert {"/health", "/tokenize"} <= routes
    assert found["parformer_peak_memory_bytes"].samples[0].value > 1e6


def test_the_page_loads_nothing_from_elsewhere(server: Served) -> None:
    answer = httpx.get(f"{server.url}/")
    assert "http" not in answer.text.replace("httpx", "")
    assert "default-src 'none'" in answer.headers["content-security-policy"]


def test_encoders_embed(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "bert", "bert", max_len=32)
    with served(folder, name="embedder") as server:
        client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
        texts = ["a text", "another, longer text"]
        found = [d.embedding for d in client.embeddings.create(model="embedder", input=texts).data]
        model = load(folder)
        for text, vector in zip(texts, found, strict=True):
            with torch.no_grad():
                mean = model(torch.tensor([list(text.encode())])).hidden[0].mean(0)
            assert vector == pytest.approx((mean / mean.norm()).tolist(), abs=1e-5)
            assert math.hypot(*vector) == pytest.approx(1, abs=1e-5)
        with pytest.raises(openai.NotFoundError, match="writes nothing on"):
            client.completions.create(model="embedder", prompt="x")


def test_translators_translate(tmp_path: Path) -> None:
    from parformer.generate.sentences import translate_text

    folder = write_model(
        tmp_path / "translator",
        "transformer",
        pattern="sf | scf",
        max_len=32,
        pad=0,
        start=1,
        end=2,
    )
    with served(folder) as server:
        body = {"text": ["ein Hund", "zwei"], "beam": 3}
        found = server.post("/translate", body).json()["translations"]
        wanted = translate_text(load(folder), Bytes(), ["ein Hund", "zwei"], beam=3)
        assert [one["text"] for one in found] == wanted
        assert server.post("/v1/completions", {"prompt": "x"}).status_code == 404
        assert server.post("/predict", {"text": "x"}).status_code == 404
        asked = {"style": "imitkd", "min_len": 3, "max_len": 6, "no_repeat_ngram": 2}
        found = server.post("/translate", body | asked).json()["translations"]
        wanted = translate_text(load(folder), Bytes(), ["ein Hund", "zwei"], beam=3, **asked)
        assert [one["text"] for one in found] == wanted
        for wrong, words in (
            ({"style": "marian"}, "style is one of fairseq, imitkd, got 'marian'"),
            ({"max_len": 1}, "max_len is a whole number from 2 to"),
            ({"min_len": 9, "max_len": 5}, "min_len 9 exceeds max_len 5"),
            ({"no_repeat_ngram": -1}, "no_repeat_ngram is a whole number from 0 to 64, got -1"),
        ):
            answer = server.post("/translate", body | wrong)
            assert answer.status_code == 400
            assert words in answer.json()["error"]["message"]


def few_words() -> str:
    """A tokenizer of Hugging Face's library, with the marks that labelled texts need."""
    words = ["[UNK]", "[CLS]", "[SEP]", "[PAD]", "a", "fine", "film", "no"]
    library = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({word: n for n, word in enumerate(words)}, unk_token="[UNK]")
    )
    library.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    library.add_special_tokens(words[:4])
    told = {
        "format": "parformer-tokenizer-1",
        "kind": "hf",
        "library": json.loads(library.to_str()),
    }
    return json.dumps(told)


def test_classifiers_tell_labels(tmp_path: Path) -> None:
    labels = {"label_head": "class", "labels": ("bad", "good"), "max_len": 32, "pool": "mean"}
    folder = tmp_path / "judge"
    lively(build(small_config("bert", vocab_size=9, **labels))).save(folder, few_words())
    with served(folder) as server:
        texts = ["a fine film", "no"]
        found = server.post("/predict", {"text": texts}).json()["predictions"]
        wanted = pf.predict(model=folder, texts=tuple(texts), device="cpu").to_dict()["predictions"]
        assert [one["label"] for one in found] == [one["label"] for one in wanted]
        for ours, theirs in zip(found, wanted, strict=True):
            assert ours["probabilities"] == pytest.approx(theirs["probabilities"], abs=1e-5)
        refused = server.post("/predict", {"text": "x", "choices": ["a", "b"]})
        assert refused.status_code == 400
        assert "this model tells a class" in refused.json()["error"]["message"]


# Bad input


def test_a_busy_port_and_a_folder_that_is_no_model(folder: Path, tmp_path: Path) -> None:
    with listen("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"cannot listen at 127.0.0.1:{port}: .*in use"):
            serving.serve(model=folder, port=port, device="cpu")
    with pytest.raises(Exception, match=r"no model|config"):
        serving.serve(model=tmp_path, port=0)
    with pytest.raises(ConfigError, match="port is a number from 0 to 65535, got 70000"):
        ServeRequest(model=folder, port=70_000)


def test_a_missing_package_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "uvicorn", None)
    with pytest.raises((MissingExtra, ImportError), match="uvicorn"):
        serving.serve(model=folder, port=0)


def test_every_piece_of_a_stream_is_json(server: Served) -> None:
    body = {"prompt": "ü", "max_tokens": 5, "stream": True, "n": 2, "logprobs": 2}
    with httpx.stream("POST", f"{server.url}/v1/completions", json=body, timeout=30) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        lines = [line for line in answer.iter_lines() if line]
    assert lines[-1] == "data: [DONE]"
    pieces = [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]
    choices = list(itertools.chain(*(piece["choices"] for piece in pieces)))
    assert sum(len(c["logprobs"]["tokens"]) for c in choices if c["logprobs"]) == 10
    assert {choice["index"] for choice in choices} == {0, 1}
