"""How fast is beam search, beside transformers and CTranslate2 with the same weights?

    python benchmarks/translation.py TRANSFORMER [OTHER ...] --rounds 6 --write

TRANSFORMER and OTHER are runs of benchmarks/translating.py. The first, a pattern (sf)xN | (scf)xN
with norms before, is put into transformers' Pegasus and into CTranslate2, in fp32 and in int8,
whose numbers are compared before anything is timed. All write the same number of tokens for each
sentence of the test: as many as its batch's longest source has. Sentences come one by one, and in
batches of 32 of about one length; beam 5, in interleaved rounds. BLEU is that of a search that ends
where it likes, on the whole test. The page of benchmarks has the table, and a picture tells BLEU
against sentences a second.
"""

from __future__ import annotations

import argparse
import math
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
import translators
from drawing import GREY, Picture
from torch import Tensor

import parformer as pf
from parformer.data.tokenizers import Tokenizer
from parformer.evaluate.translation import overlap
from parformer.generate.sentences import longest
from parformer.generate.translating import translate
from parformer.measure import Comparison, Receipt, measure_latency
from parformer.measure.device import pinned_threads
from parformer.model import Model
from parformer.train.allocator import keep_memory
from parformer.train.job import corpus_of
from parformer.train.run import open_run, read_run

PAGE = Path(__file__).parents[1] / "docs" / "benchmarks.md"
PICTURE = PAGE.parent / "experiments" / "translation-speed.svg"
BEAM = 5
SIZES = (1, 32)
"""Sentences that are translated at once."""
OURS, THEIRS = "Parformer", "transformers"
EXACT, CODED = "CTranslate2 float32", "CTranslate2 int8"
Texts = list[list[int]]
Engine = Callable[[Texts, dict[str, int]], Texts]
"""Sources of one batch and how long the answers may be, to the answers."""


def ours(model: Model) -> Engine:
    config = model.config

    def write(sources: Texts, lengths: dict[str, Any]) -> Texts:
        table = padded(sources, config.end, config.pad)
        found = translate(model, table, beam=BEAM, n_best=1, **lengths)
        return [found.plain(row, 0) for row in range(len(sources))]

    return write


def pegasus(model: Model) -> Engine:
    theirs, config = translators.as_pegasus(model), model.config
    same(model, theirs)

    @torch.inference_mode()
    def write(sources: Texts, lengths: dict[str, int]) -> Texts:
        table = padded(sources, config.end, config.pad)
        least = {"min_new_tokens": lengths["min_len"] + 1} if "min_len" in lengths else {}
        rows = theirs.generate(
            table,
            attention_mask=(table != config.pad).long(),
            num_beams=BEAM,
            max_new_tokens=lengths["max_len"] + 1,
            early_stopping=True,
            length_penalty=1.0,
            **least,
        )
        marks = {config.start, config.end, config.pad}
        return [[token for token in row if token not in marks] for row in rows.tolist()]

    return write


def ctranslate(model: Model, folder: Path, quantization: str | None, threads: int) -> Engine:
    place = translators.write_ctranslate2(model, folder, quantization)
    their, end = translators.translator(place, threads), model.config.end

    def write(sources: Texts, lengths: dict[str, int]) -> Texts:
        rows = their.translate_batch(
            [[f"t{token}" for token in (*source, end)] for source in sources],
            beam_size=BEAM,
            max_batch_size=max(SIZES),
            length_penalty=1.0,
            min_decoding_length=lengths.get("min_len", 1),
            max_decoding_length=lengths["max_len"],
        )
        return [[int(token[1:]) for token in row.hypotheses[0]] for row in rows]

    return write


def padded(sources: Texts, end: int, pad: int) -> Tensor:
    width = max(map(len, sources)) + 1
    return torch.tensor([[*source, end, *[pad] * (width - 1 - len(source))] for source in sources])


def same(model: Model, theirs: Any) -> None:
    """Both give the same logits, or nothing is compared."""
    config = model.config
    source = padded([[5, 9, 14], [7]], config.end, config.pad)
    tokens = torch.tensor([[config.start, 8, 9], [config.start, 11, 6]])
    with torch.inference_mode():
        wanted = theirs(
            input_ids=source,
            attention_mask=(source != config.pad).long(),
            decoder_input_ids=tokens,
        ).logits
        torch.testing.assert_close(model(tokens, source=source).logits, wanted, rtol=0, atol=1e-3)


def read_test(run: Path, limit: int) -> tuple[Tokenizer, Texts, list[str]]:
    """Sources in the tokens of a run, and what was to be written for them."""
    tokenizer = open_run(run).need_tokenizer()
    corpus = corpus_of(read_run(run).data, lambda *_: None)
    lines = b"".join(corpus.chunks("test")).decode().splitlines()[: limit or None]
    pairs = [line.split("\t") for line in lines]
    return tokenizer, [tokenizer.encode(source) for source, _ in pairs], [two for _, two in pairs]


def batches(sources: Texts, size: int) -> Iterator[list[int]]:
    """Numbers of sentences that are about as long as each other."""
    order = sorted(range(len(sources)), key=lambda n: len(sources[n]))
    for first in range(0, len(order), size):
        yield order[first : first + size]


def forced(engine: Engine, sources: Texts, size: int) -> Callable[[], object]:
    """All sentences, each answered with as many tokens as its batch's longest source has."""

    def work() -> object:
        for numbers in batches(sources, size):
            some = [sources[n] for n in numbers]
            count = max(map(len, some))
            engine(some, {"min_len": count, "max_len": count})
        return None

    return work


def free(engine: Engine, model: Model, sources: Texts) -> Texts:
    found: Texts = [[] for _ in sources]
    for numbers in batches(sources, max(SIZES)):
        some = [sources[n] for n in numbers]
        limits = {"max_len": longest(model, max(map(len, some)) + 1, (), 1)}
        for number, text in zip(numbers, engine(some, limits), strict=True):
            found[number] = text
    return found


def compare(arguments: argparse.Namespace, place: Path) -> Iterator[str]:
    first, *others = arguments.runs
    model = pf.load(first / "model")
    threads = arguments.threads
    keep_memory()
    engines = {
        OURS: ours(model),
        THEIRS: pegasus(model),
        EXACT: ctranslate(model, place / "float32", None, threads),
        CODED: ctranslate(model, place / "int8", "int8", threads),
    }
    models = dict.fromkeys(engines, model)
    read = {name: read_test(first, arguments.sentences) for name in engines}
    named = dict.fromkeys(engines, first)
    for run in others:
        name = f"{OURS}, {pf.load(run / 'model').config.pattern}"
        models[name] = pf.load(run / "model")
        engines[name], read[name] = ours(models[name]), read_test(run, arguments.sentences)
        named[name] = run
    scores, points = {}, {}
    with pinned_threads(threads):
        for name, engine in engines.items():
            tokenizer, sources, references = read_test(named[name], 0)
            texts = free(engine, models[name], sources)
            scores[name] = overlap([tokenizer.decode(text) for text in texts], references).bleu
        for size in SIZES:
            count = len(read[OURS][1]) if size > 1 else arguments.single
            works = {n: forced(engine, read[n][1][:count], size) for n, engine in engines.items()}
            result = measure_latency(works, rounds=arguments.rounds, warmup=1, threads=threads)
            yield f"**{in_words(size)}, {count:,} sentences, beam {BEAM}, {threads} threads**\n"
            yield from table(result, scores, count)
            points |= {
                name: (count / result[name].median, bleu)
                for name, bleu in scores.items()
                if size > 1
            }
            yield f"\nBeside transformers {transformers.__version__}: {told(result, THEIRS, 5.0)}."
            yield f"Beside CTranslate2 in float32: {told(result, EXACT, 0.8)}.\n"
    if arguments.write:
        PICTURE.write_text(picture(points), "utf-8")
    parameters = sum(p.numel() for p in model.parameters())
    yield f"`{model.config.pattern}`, {parameters:,} parameters."


def in_words(size: int) -> str:
    return "Batches of 32" if size > 1 else "One sentence at a time"


def told(result: Comparison, other: str, wanted: float) -> str:
    faster = 1 / result.ratio(OURS, other)
    verdict = "reached" if faster >= wanted else "not reached"
    return f"× {faster:.2f} as fast (wanted: {wanted:g}, {verdict})"


def table(result: Comparison, scores: dict[str, float], count: int) -> Iterable[str]:
    heads = ["", "sentences/s", "× transformers", "× CTranslate2 float32", "BLEU"]
    yield f"| {' | '.join(heads)} |"
    yield f"|---|{'---:|' * (len(heads) - 1)}"
    for name, bleu in scores.items():
        beside = [f"{1 / result.ratio(name, other):.2f}" for other in (THEIRS, EXACT)]
        cells = [f"{count / result[name].median:.1f}", *beside, f"{bleu:.1f}"]
        shown = name.replace("|", "\\|")  # a table's own sign
        yield f"| {shown} | {' | '.join(cells)} |"


MOST = 48
"""Letters of a name in the picture."""


def picture(points: Mapping[str, tuple[float, float]]) -> str:
    """BLEU against sentences a second, a dot for each."""
    speeds, scores = zip(*points.values(), strict=True)
    drawn = Picture(
        "BLEU against speed, beam 5, batches of 32", "sentences a second; BLEU upwards",
        (0, max(speeds)), (math.floor(min(scores) - 1), math.ceil(max(scores) + 1)),
        width=860, height=340, right=350,
    )  # fmt: skip
    drawn.rows()
    drawn.columns(drawn.quarters())
    named = []
    for number, (name, point) in enumerate(sorted(points.items(), key=lambda one: -one[1][1]), 1):
        shade = "#7c5cff" if name.startswith(OURS) else GREY
        drawn.dot(point, shade)
        drawn.write(drawn.x(point[0]) - 4, drawn.y(point[1]) - 8, str(number))
        named.append((point[1], f"{number} {called(name)}", shade))
    drawn.names(named, size=11)
    return drawn.svg()


def called(name: str) -> str:
    short = name.removeprefix(f"{OURS}, ")
    return short if len(short) <= MOST else f"{short[:MOST]} …"


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--sentences", type=int, default=0, help="(default: the whole test)")
    parser.add_argument("--single", type=int, default=32, help="sentences one at a time")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--write", action="store_true", help=f"write into {PAGE.name}")
    arguments = parser.parse_args(given)
    with tempfile.TemporaryDirectory() as place:
        lines = list(compare(arguments, Path(place)))
    receipt = Receipt.issue("translation").line()
    text = "\n".join([*lines, "", f"`python benchmarks/translation.py RUN …` — {receipt}"])
    print(text)
    if arguments.write:
        page = PAGE.read_text("utf-8")
        start, end = "<!-- translation -->", "<!-- end of translation -->"
        before, rest = page.split(start)
        PAGE.write_text(f"{before}{start}\n\n{text}\n\n{end}{rest.split(end)[1]}", "utf-8")


if __name__ == "__main__":
    main()
