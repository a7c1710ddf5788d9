"""How does OpenAI's API write an answer down?"""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass, field

from parformer.serve.jobs import Token
from parformer.serve.wishes import Wish
from parformer.store.files import Json


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

    def head(self, *, chunk: bool = False) -> Json:
        kind = "text_completion"
        if self.wish.chat:
            kind = "chat.completion.chunk" if chunk else "chat.completion"
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}

    def whole(self) -> Json:
        choices = [self.choice(index, choice) for index, choice in enumerate(self.choices)]
        return self.head() | {"choices": choices, "usage": self.usage()}

    def choice(self, index: int, choice: Choice) -> Json:
        told: Json = {"index": index, "finish_reason": choice.reason}
        told["logprobs"] = self.logprobs(choice.tokens)
        if self.wish.chat:
            return told | {"message": {"role": "assistant", "content": choice.text}}
        return told | {"text": choice.text}

    def chunk(
        self, index: int, text: str, tokens: tuple[Token, ...] = (), reason: str | None = None
    ) -> Json:
        """A piece of a stream."""
        told: Json = {"index": index, "finish_reason": reason}
        told["logprobs"] = self.logprobs(tokens) if tokens else None
        if self.wish.chat:
            told["delta"] = {"content": text} if text or reason is None else {}
        else:
            told["text"] = text
        return self.head(chunk=True) | {"choices": [told]}

    def opening(self, index: int) -> Json:
        """The first piece of a conversation's answer says whose it is."""
        delta = {"role": "assistant", "content": ""}
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}
        return self.head(chunk=True) | {"choices": [choice]}

    def closing(self) -> Json:
        """What a stream cost, in a piece without choices."""
        return self.head(chunk=True) | {"choices": [], "usage": self.usage()}

    def logprobs(self, tokens: list[Token] | tuple[Token, ...]) -> Json | None:
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


def spoken(token: Token) -> Json:
    """A token as conversations have it."""
    top = [with_bytes(text, logprob) for text, logprob in token.top]
    return with_bytes(token.text, token.logprob) | {"top_logprobs": top}


def with_bytes(text: str, logprob: float | None) -> Json:
    return {"token": text, "logprob": logprob, "bytes": list(text.encode("utf-8"))}


def model_card(name: str, created: int) -> Json:
    return {"id": name, "object": "model", "created": created, "owned_by": "parformer"}
