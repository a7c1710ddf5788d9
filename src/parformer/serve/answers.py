"""How does OpenAI's API write an answer down?"""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass, field
from typing import Any

from parformer.serve.jobs import Token
from parformer.serve.wishes import Wish


@dataclass
class Choice:
    """One text as far as it has come."""

    text: str = ""
    tokens: list[Token] = field(default_factory=list)
    reason: str | None = None
    written: int = 0


class Answer:
    """All texts of a request, and the shapes that clients expect them in."""

    def __init__(self, wish: Wish, model: str) -> None:
        self.wish, self.model = wish, model
        kind = "chatcmpl" if wish.chat else "cmpl"
        self.id, self.created = f"{kind}-{uuid.uuid4().hex}", int(time.time())
        self.choices = [Choice() for _ in range(wish.rows)]

    def usage(self) -> dict[str, int]:
        prompt = sum(map(len, self.wish.prompts))
        written = sum(choice.written for choice in self.choices)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": written,
            "total_tokens": prompt + written,
        }

    def head(self, *, chunk: bool = False) -> dict[str, Any]:
        kind = "text_completion"
        if self.wish.chat:
            kind = "chat.completion.chunk" if chunk else "chat.completion"
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}

    def whole(self) -> dict[str, Any]:
        choices = [self.choice(index, choice) for index, choice in enumerate(self.choices)]
        return self.head() | {"choices": choices, "usage": self.usage()}

    def choice(self, index: int, choice: Choice) -> dict[str, Any]:
        told: dict[str, Any] = {"index": index, "finish_reason": choice.reason}
        told["logprobs"] = self.logprobs(choice.tokens)
        if self.wish.chat:
            return told | {"message": {"role": "assistant", "content": choice.text}}
        return told | {"text": choice.text}

    def chunk(
        self, index: int, text: str, tokens: tuple[Token, ...] = (), reason: str | None = None
    ) -> dict[str, Any]:
        """A piece of a stream."""
        told: dict[str, Any] = {"index": index, "finish_reason": reason}
        told["logprobs"] = self.logprobs(tokens) if tokens else None
        if self.wish.chat:
            told["delta"] = {"content": text} if text or reason is None else {}
        else:
            told["text"] = text
        return self.head(chunk=True) | {"choices": [told]}

    def opening(self, index: int) -> dict[str, Any]:
        """The first piece of a conversation's answer says whose it is."""
        delta = {"role": "assistant", "content": ""}
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}
        return self.head(chunk=True) | {"choices": [choice]}

    def closing(self) -> dict[str, Any]:
        """What a stream cost, in a piece without choices."""
        return self.head(chunk=True) | {"choices": [], "usage": self.usage()}

    def logprobs(self, tokens: list[Token] | tuple[Token, ...]) -> dict[str, Any] | None:
        if self.wish.logprobs is None:
            return None
        if self.wish.chat:
            return {"content": [spoken(token) for token in tokens], "refusal": None}
        likeliest = [None if t.logprob is None else dict(t.top) for t in tokens]
        return {
            "tokens": [token.text for token in tokens],
            "token_logprobs": [token.logprob for token in tokens],
            "top_logprobs": likeliest if self.wish.logprobs else None,
            "text_offset": [token.offset for token in tokens],
        }


def spoken(token: Token) -> dict[str, Any]:
    """A token as conversations have it."""
    top = [with_bytes(text, logprob) for text, logprob in token.top]
    return with_bytes(token.text, token.logprob) | {"top_logprobs": top}


def with_bytes(text: str, logprob: float | None) -> dict[str, Any]:
    return {"token": text, "logprob": logprob, "bytes": list(text.encode("utf-8"))}


def model_card(name: str, created: int) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": created, "owned_by": "parformer"}
