"""What can this model be asked, beside writing on?"""

# b texts, t time, d width

from __future__ import annotations

import base64
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, cast

import torch
from torch import Tensor

from parformer.data.tokenizer import Tokenizer
from parformer.generate.decoding import STYLES, Decoding
from parformer.model import Model
from parformer.predict.request import PredictRequest
from parformer.predict.telling import Teller, refuse_misfit
from parformer.serve.engine import Engine
from parformer.serve.figures import Figures
from parformer.serve.refusing import Body, Refused, text_of
from parformer.serve.wishes import PROMPT_LIMIT, Reader
from parformer.store.files import Json

MOST_TEXTS, LONGEST_TEXT = 128, 2**14
MOST_BEAMS = 16
LONGEST_NGRAM = 64


@dataclass(kw_only=True)
class Services:
    """A model behind its engine, and what a server knows of itself."""

    model: Model
    tokenizer: Tokenizer
    engine: Engine
    name: str
    most: int
    """Tokens that one answer may have."""
    timeout: float
    hosts: tuple[str, ...] = ()
    key: str = ""
    figures: Figures = field(default_factory=Figures)
    created: int = field(default_factory=lambda: int(time.time()))
    teller: Teller | None = None
    """Labels for texts, where the model was trained on some."""
    lower: bool = False
    """Whether a translator knows small letters alone."""
    source_words: int = 0
    """Words of a source that it reads; 0 means all."""

    def check_model(self, name: str) -> None:
        Reader(self.model, self.tokenizer, self.name, self.most).check_model(name)

    def reader(self) -> Reader:
        """What reads requests for text, for a model that writes."""
        config = self.model.config
        if self.model.encoder is not None:
            raise Refused("this model translates; ask /translate", status=404)
        if not config.causal or config.head != "lm":
            raise Refused("this model sees both sides and writes nothing on", status=404)
        return Reader(self.model, self.tokenizer, self.name, self.most)

    def errand(self, path: str, values: Json) -> Callable[[], Json]:
        """What the engine's thread has to do for a request, once that is understood."""
        return {
            "/v1/embeddings": self.embeddings,
            "/translate": self.translate,
            "/predict": self.predicted,
            "/tokenize": self.tokenize,
            "/detokenize": self.detokenize,
        }[path](values)

    def tokenize(self, values: Json) -> Callable[[], Json]:
        body = Body(values)
        given = body.take("text")
        text = text_of("text", body.take("content") if given is None else given)
        body.ignore("model")
        body.refuse_rest()

        def work() -> Json:
            tokens = self.tokenizer.encode(text)
            return {"tokens": tokens, "count": len(tokens)}

        return work

    def detokenize(self, values: Json) -> Callable[[], Json]:
        body = Body(values)
        given = body.take("tokens")
        if not isinstance(given, list) or len(given) > PROMPT_LIMIT:
            raise Refused(f"tokens is a list of at most {PROMPT_LIMIT:,} numbers", param="tokens")
        reader = Reader(self.model, self.tokenizer, self.name, self.most)
        tokens = reader.tokens(given, "tokens")
        body.ignore("model")
        body.refuse_rest()
        return lambda: {"text": self.tokenizer.decode(tokens)}

    def predicted(self, values: Json) -> Callable[[], Json]:
        teller = self.teller
        if teller is None:
            raise Refused("this model was trained on no labels, so it predicts none", status=404)
        body = Body(values)
        asked = PredictRequest(
            model=Path(self.name),
            texts=body.texts("text", MOST_TEXTS, LONGEST_TEXT),
            text_pairs=body.texts("text_pair", MOST_TEXTS, LONGEST_TEXT),
            question=body.text("question", ""),
            passage=body.text("passage", ""),
            choices=body.texts("choices", MOST_TEXTS, LONGEST_TEXT),
        )
        body.ignore("model")
        body.refuse_rest()
        examples = asked.examples()
        for example in examples:
            refuse_misfit(teller, example)

        def work() -> Json:
            told = [one.to_dict() for one in teller.tell(examples)]
            return {"predictions": told, "model": self.name}

        return work

    def translate(self, values: Json) -> Callable[[], Json]:
        if self.model.encoder is None:
            raise Refused("this model has no encoder, so it translates nothing", status=404)
        from parformer.generate.sentences import as_trained, translate_text

        body = Body(values)
        texts = body.texts("text", MOST_TEXTS, LONGEST_TEXT)
        if not texts or not all(text.strip() for text in texts):
            raise Refused("text holds what is to be translated, one text or several", param="text")
        asked = wanted(body, self.most)
        body.ignore("model")
        body.refuse_rest()

        def work() -> Json:
            read = as_trained(texts, lower=self.lower, words=self.source_words)
            found = translate_text(self.model, self.tokenizer, read, **asked.decoding)
            return {"translations": [{"text": text} for text in found], "model": self.name}

        return work

    def embeddings(self, values: Json) -> Callable[[], Json]:
        """Means over the tokens of what an encoder gives, of length one."""
        config = self.model.config
        if config.causal:
            raise Refused("this model sees one side only and embeds no texts", status=404)
        body = Body(values)
        reader = Reader(self.model, self.tokenizer, self.name, self.most)
        reader.check_model(body.text("model", self.name))
        rows = reader.prompts(body.take("input"))
        kind = body.text("encoding_format", "float")
        if kind not in ("float", "base64"):
            raise Refused("encoding_format is float or base64", param="encoding_format")
        body.whole("dimensions", config.d_model, config.d_model, config.d_model)
        body.ignore("user")
        body.refuse_rest()

        def work() -> Json:
            vectors_bd = embed(self.model, rows)
            data = [
                {"object": "embedding", "index": n, "embedding": written(vector_d, kind)}
                for n, vector_d in enumerate(vectors_bd)
            ]
            count = sum(map(len, rows))
            usage = {"prompt_tokens": count, "total_tokens": count}
            return {"object": "list", "data": data, "model": self.name, "usage": usage}

        return work


def wanted(body: Body, most: int) -> Decoding:
    """How a client wants its texts to be looked for."""
    style = body.text("style", "fairseq")
    if style not in STYLES:
        raise Refused(f"style is one of {', '.join(STYLES)}, got {style!r:.40}", param="style")
    own = {"min_len": (0, most), "max_len": (2, most)}
    lengths = {
        name: None if body.take(name) is None else body.whole(name, low, low, high)
        for name, (low, high) in own.items()
    }
    penalty = None
    if body.take("length_penalty") is not None:
        penalty = body.number("length_penalty", 1.0, -5.0, 5.0)
    return Decoding(
        beam=body.whole("beam", 5, 1, MOST_BEAMS),
        style=cast(Literal["fairseq", "imitkd"], style),
        length_penalty=penalty,
        no_repeat_ngram=body.whole("no_repeat_ngram", 0, 0, LONGEST_NGRAM),
        **lengths,
    )


def embed(model: Model, rows: tuple[tuple[int, ...], ...]) -> Tensor:
    """(texts, width): the mean of the last vectors, each of length one."""
    width = max(map(len, rows))
    device = next(model.parameters()).device
    tokens_bt = torch.tensor([[*row, *[0] * (width - len(row))] for row in rows], device=device)
    lengths_b = torch.tensor([len(row) for row in rows], device=device)
    present_bt = torch.arange(width, device=device) < lengths_b[:, None]
    padding = None if bool(present_bt.all()) else present_bt
    hidden_btd = model(tokens_bt, padding=padding).hidden
    sums_bd = (hidden_btd * present_bt[..., None]).sum(1) / lengths_b[:, None]
    return torch.nn.functional.normalize(sums_bd.float(), dim=-1).cpu()


def written(vector_d: Tensor, kind: str) -> Any:
    if kind == "float":
        return [float(number) for number in vector_d]
    return base64.b64encode(vector_d.numpy().astype("<f4").tobytes()).decode("ascii")
