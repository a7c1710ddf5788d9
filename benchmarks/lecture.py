"""How fast are BERT's relatives beside transformers' own, and what do norms and activations cost?

    python benchmarks/lecture.py --write
    python benchmarks/lecture.py grid --rounds 4 --layers 2 --tokens 16

`encoders`: BERT, PAR BERT, DistilBERT, ALBERT, MobileBERT and its Tiny, one text of 128 tokens in
fp32, Parformer beside Hugging Face's transformers with the same weights, with one thread and
with two; every pair gives the same numbers before it is timed. transformers has no PAR BERT: its
blocks are put in that order. `grid`: MobileBERT with true norms or none, with gelu or relu, as in
its table of 192, 167, 92 and 62 ms on a phone (Sun et al. 2020). All of one table runs in
interleaved rounds; ratios are medians over the rounds.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers.models.bert.modeling_bert import BertAttention, BertIntermediate, BertOutput

import parformer as pf
from parformer.measure import Comparison, Receipt, measure_latency
from parformer.measure.device import pinned_threads
from parformer.model import Model
from parformer.report.words import duration

PAGE = Path(__file__).parents[1] / "docs" / "benchmarks.md"
WANTED = 1.15
"""How many times as fast as transformers each model should be."""
PHONE = {"layer-gelu": 192, "layer-relu": 167, "affine-gelu": 92, "affine-relu": 62}
"""Milliseconds in the paper."""
ATTENTION = ("eager", "sdpa")
"""The two ways in which transformers computes attention without compiling."""
WAYS = ("Parformer", "packed")
"""Weights as they are, and laid out for this many tokens (`Model.pack`)."""
Call = Callable[[], object]


class TheirPar(nn.Module):
    """PAR BERT of transformers' own blocks."""

    def __init__(self, config: Any, letters: str) -> None:
        super().__init__()
        whole = transformers.BertModel(config, add_pooling_layer=False)
        self.embeddings = whole.embeddings
        self.blocks = nn.ModuleList(
            BertAttention(config)
            if letter == "s"
            else nn.ModuleList([BertIntermediate(config), BertOutput(config)])
            for letter in letters
        )

    def forward(self, input_ids: Tensor) -> Any:
        x = self.embeddings(input_ids)
        for block in self.blocks:
            if isinstance(block, BertAttention):
                x = block(x)[0]
                continue
            assert isinstance(block, nn.ModuleList)
            inner, out = block
            x = out(inner(x), x)
        return transformers.modeling_outputs.BaseModelOutput(last_hidden_state=x)

    def as_parformer(self, config: Any) -> Model:
        """The same weights in our blocks."""
        got = dict(self.embeddings.state_dict())
        ours = {
            "embedding.words.tables.0": got["word_embeddings.weight"],
            "embedding.positions": got["position_embeddings.weight"],
            "embedding.types": got["token_type_embeddings.weight"],
            "embedding.norm.weight": got["LayerNorm.weight"],
            "embedding.norm.bias": got["LayerNorm.bias"],
        }
        for i, block in enumerate(self.blocks):
            names = {"output.dense": "out", "output.LayerNorm": "norm"}
            parts = dict(block.named_parameters())
            if not isinstance(block, BertAttention):
                names = {"0.dense": "inner", "1.dense": "out", "1.LayerNorm": "norm"}
            for kind in ("weight", "bias"):
                ours |= {f"blocks.{i}.{o}.{kind}": parts[f"{t}.{kind}"] for t, o in names.items()}
                if isinstance(block, BertAttention):
                    qkv = [parts[f"self.{name}.{kind}"] for name in ("query", "key", "value")]
                    ours[f"blocks.{i}.qkv.{kind}"] = torch.cat([*qkv])
        sizes = {
            "vocab_size": config.vocab_size,
            "d_model": config.hidden_size,
            "n_head": config.num_attention_heads,
            "d_inner": config.intermediate_size,
        }
        par = pf.preset("par-bert-base", pattern=letters_of(self), pooler=False, **sizes)
        return pf.model.build_from(par, {name: weight.detach() for name, weight in ours.items()})


def letters_of(model: TheirPar) -> str:
    return "".join("s" if isinstance(block, BertAttention) else "f" for block in model.blocks)


def make_par(layers: int | None, **more: Any) -> tuple[nn.Module, Model]:
    letters = "".join(spec.letter for spec in pf.preset("par-bert-base").pattern)
    config = transformers.BertConfig(**more)
    theirs = TheirPar(config, letters[: 2 * layers] if layers else letters).eval()
    return theirs, theirs.as_parformer(config)


def make(family: str, sizes: Mapping[str, Any]) -> Callable[..., tuple[nn.Module, Model]]:
    """Their model, and ours with its weights."""

    def of(layers: int | None, **more: Any) -> tuple[nn.Module, Model]:
        key = "n_layers" if family == "DistilBert" else "num_hidden_layers"
        given = {**sizes, **more} | ({key: layers} if layers else {})
        config = getattr(transformers, f"{family}Config")(**given)
        theirs = getattr(transformers, f"{family}Model")(config).eval()
        convert = getattr(pf.convert, f"from_{family.lower()}")
        return theirs, convert(theirs.state_dict(), theirs.config.to_dict())

    return of


ALBERT_BASE = {"hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072}
TINY = {
    "num_feedforward_networks": 2,
    "use_bottleneck_attention": True,
    "key_query_shared_bottleneck": False,
    "classifier_activation": False,
}
MODELS: dict[str, Callable[..., tuple[nn.Module, Model]]] = {
    "BERT Base": make("Bert", {}),
    "PAR BERT Base": make_par,
    "DistilBERT": make("DistilBert", {}),
    "ALBERT Base": make("Albert", ALBERT_BASE),
    "MobileBERT": make("MobileBert", {"classifier_activation": False}),
    "MobileBERT Tiny": make("MobileBert", TINY),
}


def reader(model: nn.Module, tokens: Tensor) -> Call:
    def read() -> object:
        with torch.inference_mode():
            return model(tokens)

    return read


def same(theirs: nn.Module, ours: Model, tokens: Tensor) -> None:
    """Both give the same hidden states, or nothing is compared."""
    with torch.inference_mode():
        wanted, found = theirs(tokens).last_hidden_state, ours(tokens).hidden
    close = 1e-3 * float(wanted.abs().max().clamp(min=1))
    torch.testing.assert_close(found, wanted, rtol=0, atol=close)


def encoders(arguments: argparse.Namespace) -> Iterator[str]:
    tokens = some_tokens(arguments.tokens)
    rows: dict[int, list[list[str]]] = {1: [], 2: []}
    for name in arguments.only or MODELS:
        build = MODELS[name]
        theirs, ours = build(arguments.layers, attn_implementation="eager")
        same(theirs, ours, tokens)
        fused, packed = with_sdpa(theirs), deepcopy(ours)
        packed.pack(tokens.shape[1])
        same(fused, packed, tokens)
        models = {"Parformer": ours, "packed": packed, "eager": theirs, "sdpa": fused}
        candidates = {key: reader(model, tokens) for key, model in models.items()}
        for threads, lines in rows.items():
            with pinned_threads(threads):
                result = measure_latency(candidates, rounds=arguments.rounds, threads=threads)
            lines.append([name, *row_of(result)])
        print(f"{name}: done", file=sys.stderr)
    heads = ["", "transformers, eager attention", "transformers, sdpa", "Parformer", "packed"]
    heads += ["× faster than eager", "packed", "packed, than sdpa", f"≥ {WANTED} × eager"]
    for threads, lines in rows.items():
        yield f"**{arguments.tokens} tokens, one text, fp32, {in_words(threads)}**\n"
        yield from table(heads, lines)
        yield ""


def with_sdpa(model: nn.Module) -> nn.Module:
    """The same with the other way of attention."""
    other = deepcopy(model)
    for module in other.modules():
        if hasattr(module, "config"):
            module.config._attn_implementation = "sdpa"
    return other


def in_words(threads: int) -> str:
    return f"{threads} thread{'s' * (threads > 1)}"


def row_of(result: Comparison) -> list[str]:
    times = [duration(result[name].median) for name in (*ATTENTION, *WAYS)]
    pairs = [("Parformer", "eager"), ("packed", "eager"), ("packed", "sdpa")]
    faster = [1 / result.ratio(*pair) for pair in pairs]
    verdict = "yes" if max(faster[:2]) >= WANTED else "no"
    return [*times, *(f"{one:.2f}" for one in faster), verdict]


def grid(arguments: argparse.Namespace) -> Iterator[str]:
    """Norms and activations of MobileBERT; all do the same matrix products."""
    tokens = some_tokens(arguments.tokens)
    for threads in (1, 2):
        candidates: dict[str, Call] = {}
        for key in PHONE:
            norm, activation = key.split("-")
            changes: dict[str, Any] = {"norm_type": norm, "activation": activation}
            if arguments.layers:
                changes["pattern"] = f"<sffff>[feed=shared]x{arguments.layers}"
            candidates[key] = reader(pf.build(pf.preset("mobilebert", **changes)), tokens)
        with pinned_threads(threads):
            result = measure_latency(candidates, rounds=arguments.rounds, threads=threads)
        first, last = "layer-gelu", "affine-relu"
        yield f"**MobileBERT, {arguments.tokens} tokens, fp32, {in_words(threads)}**\n"
        heads = [
            "",
            "here",
            "of LayerNorm and gelu",
            "on a phone (the paper)",
            "of LayerNorm and gelu",
        ]
        yield from table(
            heads,
            (
                [
                    key.replace("layer-", "LayerNorm, ").replace("affine-", "NoNorm, "),
                    duration(result[key].median),
                    f"{result.ratio(key, first):.3f}",
                    f"{phone} ms",
                    f"{phone / PHONE[first]:.3f}",
                ]
                for key, phone in PHONE.items()
            ),
        )
        difference = result.difference(last, first)
        yield f"\nWithout true norms and gelu, on this CPU: {difference}.\n"


def some_tokens(count: int) -> Tensor:
    return torch.randint(5, 30_000, (1, count), generator=torch.Generator().manual_seed(0))


def table(heads: list[str], rows: Iterable[list[str]]) -> list[str]:
    lines = [heads, ["---", *["---:"] * (len(heads) - 1)], *rows]
    return [f"| {' | '.join(cells)} |" for cells in lines]


SECTIONS = {"encoders": encoders, "grid": grid}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("sections", nargs="*", metavar="SECTION", help=", ".join(SECTIONS))
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--layers", type=int, help="fewer layers, to try it")
    parser.add_argument("--only", action="append", choices=MODELS, help="just this model")
    parser.add_argument("--write", action="store_true", help=f"write into {PAGE.name}")
    arguments = parser.parse_args()
    unknown = set(arguments.sections) - set(SECTIONS)
    if unknown:
        parser.error(f"unknown section {unknown.pop()!r}; known: {', '.join(SECTIONS)}")
    for name in arguments.sections or SECTIONS:
        lines = list(SECTIONS[name](arguments))
        receipt = Receipt.issue(name).line()
        text = "\n".join([*lines, f"`python benchmarks/lecture.py {name}` — {receipt}"])
        print(text, end="\n\n")
        if arguments.write:
            write(f"lecture-{name}", text)


def write(name: str, text: str) -> None:
    """Put a section between its marks on the page."""
    page = PAGE.read_text("utf-8")
    start, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
    before, rest = page.split(start)
    PAGE.write_text(f"{before}{start}\n\n{text}\n\n{end}{rest.split(end)[1]}", "utf-8")


if __name__ == "__main__":
    main()
