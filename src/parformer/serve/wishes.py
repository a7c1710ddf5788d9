"""What does a client want to be written? The fields of OpenAI's completions, read and bounded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from parformer.data.tokenizer import Tokenizer
from parformer.generate.writing import Sampling
from parformer.model import Model
from parformer.serve.refusing import Body, Refused, kind_of, text_of
from parformer.store.files import Json

MOST_CHOICES = 16
MOST_PROMPTS = 64
MOST_ROWS = 64
"""Texts of one request together."""
MOST_LOGPROBS = 20
MOST_STOPS, LONGEST_STOP = 16, 256
MOST_BIASED = 300
MOST_MESSAGES = 1024
PROMPT_LIMIT = 65_536
"""Tokens of a prompt, where the model itself has no window that ends."""

NEUTRAL = ("suffix", "tools", "tool_choice", "functions", "function_call", "audio", "prediction")
NEUTRAL_CHAT = ("modalities", "web_search_options", "reasoning_effort", "verbosity")
IGNORED = ("user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key")
IGNORED_TOOLS = ("parallel_tool_calls",)


@dataclass(frozen=True, kw_only=True, slots=True)
class Wish:
    """Texts to be written, and how."""

    prompts: tuple[tuple[int, ...], ...]
    n: int = 1
    """Texts after each prompt."""
    tokens: int = 16
    """To write at most."""
    sampling: Sampling = Sampling()  # noqa: RUF009
    seed: int | None = None
    stop: tuple[str, ...] = ()
    logprobs: int | None = None
    """Likeliest tokens to tell beside each; None for no log-probabilities."""
    echo: bool = False
    stream: bool = False
    usage: bool = False
    """Whether a stream ends with what it cost."""
    frequency: float = 0.0
    presence: float = 0.0
    bias: tuple[tuple[int, float], ...] = ()
    chat: bool = False

    @property
    def rows(self) -> int:
        return self.n * len(self.prompts)


class Reader:
    """Makes wishes of requests, for one model."""

    def __init__(self, model: Model, tokenizer: Tokenizer, name: str, most: int) -> None:
        self.config, self.tokenizer, self.name, self.most = model.config, tokenizer, name, most

    def completion(self, values: Json) -> Wish:
        body = Body(values)
        prompts = self.prompts(body.take("prompt"))
        logprobs = body.take("logprobs")
        if logprobs is not None:
            logprobs = body.whole("logprobs", 0, 0, MOST_LOGPROBS)
        echo = body.flag("echo")
        least = 0 if echo else 1
        tokens = body.whole("max_tokens", 16, least, self.most)
        best = body.whole("best_of", 1, 1, MOST_CHOICES)
        wish = self.wish(body, prompts, tokens, logprobs=logprobs, echo=echo)
        if best not in (1, wish.n):
            raise Refused(f"best_of {best} is not supported beside n {wish.n}", param="best_of")
        return wish

    def chat(self, values: Json) -> Wish:
        body = Body(values)
        prompt = self.fit(self.tokenizer.encode(plain_chat(body.take("messages"))), "messages")
        logprobs = None
        if body.flag("logprobs"):
            logprobs = body.whole("top_logprobs", 0, 0, MOST_LOGPROBS)
        elif body.take("top_logprobs") is not None:
            raise Refused("top_logprobs needs logprobs: true", param="top_logprobs")
        usual = min(256, self.most, max(1, self.room(len(prompt))))
        tokens = body.whole("max_tokens", usual, 1, self.most)
        tokens = body.whole("max_completion_tokens", tokens, 1, self.most)
        kind = body.take("response_format")
        if kind not in (None, {"type": "text"}):
            raise Refused("response_format is text here; leave it out", param="response_format")
        body.neutral(*NEUTRAL_CHAT)
        return self.wish(body, (prompt,), tokens, logprobs=logprobs, chat=True)

    def wish(self, body: Body, prompts: Any, tokens: int, **own: Any) -> Wish:
        """The fields that both have."""
        self.check_model(body.text("model", self.name))
        stop = body.texts("stop", MOST_STOPS, LONGEST_STOP)
        options = body.take("stream_options") or {}
        if not isinstance(options, dict) or not {*options} <= {"include_usage"}:
            raise Refused("stream_options may hold include_usage alone", param="stream_options")
        wish = Wish(
            prompts=prompts,
            tokens=tokens,
            n=body.whole("n", 1, 1, MOST_CHOICES),
            sampling=Sampling(
                temperature=body.number("temperature", 1.0, 0.0, 2.0),
                top_p=body.number("top_p", 1.0, 1e-9, 1.0),
                top_k=body.whole("top_k", 0, 0, 2**31),
            ),
            seed=None if body.take("seed") is None else body.whole("seed", 0, -(2**63), 2**63),
            stop=(*stop, *TURNS) if own.get("chat") else stop,
            stream=body.flag("stream"),
            usage=Body(options).flag("include_usage"),
            frequency=body.number("frequency_penalty", 0.0, -2.0, 2.0),
            presence=body.number("presence_penalty", 0.0, -2.0, 2.0),
            bias=self.biases(body.take("logit_bias")),
            **own,
        )
        body.neutral(*NEUTRAL)
        body.ignore(*IGNORED, *IGNORED_TOOLS)
        body.refuse_rest()
        if wish.rows > MOST_ROWS:
            raise Refused(f"n × prompts is {wish.rows}, {MOST_ROWS} at most", param="n")
        for prompt in prompts:
            self.check_room(prompt, tokens)
        return wish

    def check_model(self, name: str) -> None:
        if name != self.name:
            raise Refused(
                f"the model {name!r:.80} is not here; ask for {self.name!r}",
                status=404,
                param="model",
                code="model_not_found",
            )

    def prompts(self, given: Any) -> tuple[tuple[int, ...], ...]:
        """A text, several, tokens, or several of these."""
        if given is None:
            raise Refused("prompt is missing; give a text, tokens, or a list", param="prompt")
        several = given if isinstance(given, list) else [given]
        if several and all(type(one) is int for one in several):
            several = [several]
        if not 1 <= len(several) <= MOST_PROMPTS:
            raise Refused(
                f"prompt holds {len(several)} texts, 1 to {MOST_PROMPTS} are possible",
                param="prompt",
            )
        return tuple(self.prompt(one) for one in several)

    def prompt(self, given: Any) -> tuple[int, ...]:
        if isinstance(given, list):
            return self.fit(self.tokens(given, "prompt"), "prompt")
        return self.fit(self.tokenizer.encode(text_of("prompt", given)), "prompt")

    def tokens(self, given: list[Any], name: str) -> list[int]:
        """Numbers that are tokens of this vocabulary."""
        size = self.tokenizer.size
        for token in given:
            if type(token) is not int or not 0 <= token < size:
                raise Refused(f"{name} holds {token!r:.40}, no token of 0 … {size - 1}", param=name)
        return given

    def fit(self, tokens: list[int], name: str) -> tuple[int, ...]:
        limit = self.config.max_len if self.config.numbered else PROMPT_LIMIT
        if len(tokens) > limit:
            raise Refused(
                f"the prompt has {len(tokens):,} tokens, the model's window {limit:,}; shorten it",
                param=name,
                code="context_length_exceeded",
            )
        return tuple(tokens or self.tokenizer.encode("\n") or [0])

    def room(self, prompt: int) -> int:
        """Tokens that may follow a prompt of so many."""
        return self.config.max_len - prompt if self.config.numbered else self.most

    def check_room(self, prompt: tuple[int, ...], tokens: int) -> None:
        if tokens > self.room(len(prompt)):
            raise Refused(
                f"{len(prompt):,} tokens of prompt and max_tokens {tokens:,} exceed the model's "
                f"window of {self.config.max_len:,}; lower one of them",
                param="max_tokens",
                code="context_length_exceeded",
            )

    def biases(self, given: Any) -> tuple[tuple[int, float], ...]:
        if given is None:
            return ()
        if not isinstance(given, dict) or len(given) > MOST_BIASED:
            raise Refused(
                f"logit_bias is an object of at most {MOST_BIASED} tokens, got {kind_of(given)}",
                param="logit_bias",
            )
        found = []
        for token, value in given.items():
            number = int(token) if token.isdecimal() and len(token) < 10 else -1
            self.tokens([number], "logit_bias")
            found.append((number, Body({"logit_bias": value}).number("logit_bias", 0, -100, 100)))
        return tuple(found)


ROLES = {"system": "", "developer": "", "user": "User: ", "assistant": "Assistant: "}
TURNS = ("\nUser:",)
"""Where a model that goes on with the conversation by itself is stopped."""


def plain_chat(messages: Any) -> str:
    r"""A conversation as plain text, for models that were never taught a form of their own.

    >>> plain_chat([{"role": "user", "content": "Hello."}])
    'User: Hello.\nAssistant:'
    """
    if not isinstance(messages, list) or not 1 <= len(messages) <= MOST_MESSAGES:
        raise Refused(
            f"messages is a list of 1 to {MOST_MESSAGES} objects with role and content",
            param="messages",
        )
    lines = []
    for message in messages:
        role = message.get("role") if isinstance(message, dict) else None
        if not isinstance(role, str) or role not in ROLES:
            known = ", ".join(ROLES)
            raise Refused(f"a message's role is one of {known}, got {role!r:.40}", param="messages")
        lines.append(f"{ROLES[role]}{content_of(message.get('content'))}\n")
    return "".join(lines) + "Assistant:"


def content_of(content: Any) -> str:
    """A text, or the texts of its parts; nothing is fetched from anywhere."""
    if content is None or isinstance(content, str):
        return text_of("messages", content or "")
    parts = content if isinstance(content, list) else [content]
    found = []
    for part in parts[:MOST_MESSAGES]:
        if not isinstance(part, dict) or part.get("type") != "text":
            kind = part.get("type") if isinstance(part, dict) else kind_of(part)
            raise Refused(f"content is text here, got {kind!r:.40}", param="messages")
        found.append(text_of("messages", part.get("text")))
    return "".join(found)
