"""What can one ask of a model that writes, and what does it answer?"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from parformer.errors import ConfigError
from parformer.events import Listener, Watch, nobody
from parformer.fields import need_at_least
from parformer.generate.decoding import Decoding
from parformer.records import Record
from parformer.store.files import reason, replace_file
from parformer.verbs import requested

if TYPE_CHECKING:
    from parformer.generate.writing import Sampling
    from parformer.model import Model
    from parformer.train.run import Opened

ONE_THREAD = 20_000_000
"""FLOPs of a step below which one thread writes as fast as two, and beside other work much faster
(`python benchmarks/busy.py`)."""

LONGEST_COPY = 12
"""The same for a model that looks for repeats: it would copy itself for ever."""


TOKENS = 200
"""Written after a prompt unless somebody says otherwise."""


@dataclass(frozen=True, kw_only=True)
class GenerateRequest(Decoding):
    """A trained model, and how it is to write on."""

    model: Path
    """Folder of a run or of a model."""
    prompts: tuple[str, ...] = ("",)
    """Text to go on with; may be repeated."""
    sources: tuple[str, ...] = ()
    """Text to translate, for a model with an encoder; may be repeated."""
    input: Path | None = None
    """File of such texts, one in a line."""
    output: Path | None = None
    """File for the translations, those of a source in one line, with tabs between several."""
    n_best: int = 1
    """Translations of each source that are told, best first."""
    prefix: tuple[str, ...] = ()
    """What translations have to begin with, one for all or one for each source; may be repeated."""
    tokens: int | None = None
    """To write at most."""
    temperature: float | None = None
    """Below 1: likely tokens more so."""
    greedy: bool = False
    """Always the likeliest token."""
    top_k: int = 0
    """Draw among the K likeliest."""
    top_p: float = 1.0
    """Draw among the likeliest that have probability P together."""
    repetition_penalty: float = 1.0
    """Above 1: tokens seen before become less likely."""
    longest_copy: int | None = None
    """Copies of earlier text that are longer become less likely; 0 means never."""
    seed: int = 0
    """Of what is drawn."""
    stop: tuple[str, ...] = ()
    """End before this text; may be repeated."""
    device: str = "auto"
    """Such as cpu or cuda:0."""
    weights: Literal["float32", "bfloat16", "int8", "int4"] = "float32"
    """How matrices are kept while text is written on a CPU: fewer bits are read faster."""

    def __post_init__(self) -> None:
        Decoding.__post_init__(self)
        if self.greedy and self.temperature is not None:
            raise ConfigError(
                f"--greedy and --temperature {self.temperature:g} contradict each other; "
                "give one of them"
            )
        need_at_least("n_best", self.n_best, 1)
        if self.tokens is not None:
            need_at_least("tokens", self.tokens, 1)
        need_at_least("longest_copy", self.longest_copy or 0, 0)
        if self.sources and self.input is not None:
            raise ConfigError("--source and --input are two places of sources; give one of them")
        if self.weights != "float32" and self.reads_source:
            raise ConfigError(f"--weights {self.weights} is for prompts, not for sources")
        if self.output is not None and not self.reads_source:
            raise ConfigError(f"--output {self.output} is for translations; give --input too")
        if self.reads_source:
            self.refuse_doubles()
        elif self.for_sources:
            raise ConfigError(f"{self.for_sources[0]} is for sources; give --source or --input too")

    def refuse_doubles(self) -> None:
        """What means nothing where a source is read, or is said twice."""
        if self.tokens is not None and self.max_len is not None:
            raise ConfigError(
                f"--tokens {self.tokens} and --max-len {self.max_len} are two lengths; give one"
            )
        if self.stop:
            raise ConfigError(f"--stop {self.stop[0]!r:.40} is for prompts, not for sources")

    @property
    def for_sources(self) -> list[str]:
        """Flags that were given and that only a translator understands."""
        more = {"--n-best": self.n_best > 1, "--prefix": bool(self.prefix)}
        return [*self.flags, *(flag for flag, given in more.items() if given)]

    @property
    def reads_source(self) -> bool:
        return bool(self.sources) or self.input is not None


@dataclass(frozen=True, slots=True)
class Written(Record):
    """A prompt and what follows it."""

    prompt: str
    text: str


@dataclass(frozen=True, slots=True)
class Translated(Written):
    """A source, a text for it, and what the search scored that by."""

    score: float


def generate(
    request: GenerateRequest | None = None, *, watch: Listener = nobody, **given: Any
) -> tuple[Written, ...]:
    """Let a trained model write on; `watch` hears of every piece as soon as it is certain."""
    asked = requested(GenerateRequest, request, given)
    from parformer.costs import cost
    from parformer.generate.writing import Sampling, generate_text
    from parformer.measure.device import find_device, pinned_threads
    from parformer.model import load
    from parformer.train.run import open_run

    opened = open_run(Path(asked.model))
    model = load(opened.folder, device=find_device(asked.device))
    copies = LONGEST_COPY if model.config.recall and not asked.greedy else 0
    sampling = Sampling(
        longest_copy=copies if asked.longest_copy is None else asked.longest_copy,
        temperature=0.0
        if asked.greedy
        else 1.0
        if asked.temperature is None
        else asked.temperature,
        top_k=asked.top_k,
        top_p=asked.top_p,
        repetition_penalty=asked.repetition_penalty,
    )
    if model.encoder is not None or asked.reads_source:
        return translated(asked, model, opened, sampling)
    small = cost(model.config, tgt_len=1).flops_cached * len(asked.prompts) < ONE_THREAD
    with pinned_threads(1 if small else None):
        texts = generate_text(
            model,
            opened.need_tokenizer(),
            asked.prompts,
            TOKENS if asked.tokens is None else asked.tokens,
            sampling=sampling,
            seed=asked.seed,
            stop=asked.stop,
            weights=asked.weights,
            on_text=Watch(watch).wrote,
        )
    return tuple(map(Written, asked.prompts, texts))


def translated(
    asked: GenerateRequest, model: Model, opened: Opened, sampling: Sampling
) -> tuple[Translated, ...]:
    """What a model with an encoder makes of its sources."""
    from parformer.generate.sentences import as_trained, text_options

    if model.encoder is None:
        raise ConfigError(
            f"the model in {str(asked.model)!r} has no encoder, so it reads no source; give "
            "--prompt instead"
        )
    if not asked.reads_source:
        raise ConfigError(
            f"the model in {str(asked.model)!r} translates; give it a --source, or --input FILE"
        )
    sources = asked.sources if asked.input is None else read_sources(asked.input)
    how = asked.decoding | {"n_best": asked.n_best}
    how["prefix"] = asked.prefix * len(sources) if len(asked.prefix) == 1 else asked.prefix
    if asked.tokens is not None:
        # imitkd counts the start too
        how["max_len"] = asked.tokens + (asked.style == "imitkd")
    drawn = asked.temperature is not None or asked.top_k or asked.top_p < 1
    if asked.greedy or drawn:
        how |= {"sampling": sampling, "seed": asked.seed}
    if opened.recipe is not None:
        data = opened.recipe.data
        read = as_trained(sources, lower=data.lower, words=data.source_words)
        how["cut"] = opened.recipe.train.task == "summarise"
    else:
        read = list(sources)
    found = text_options(model, opened.need_tokenizer(), read, **how)
    if asked.output is not None:
        lines = ("\t".join(one.text for one in texts) for texts in found)
        replace_file(Path(asked.output), "".join(f"{line}\n" for line in lines))
    return tuple(
        Translated(source, one.text, one.score)
        for source, texts in zip(sources, found, strict=True)
        for one in texts
    )


def read_sources(file: Path) -> tuple[str, ...]:
    """The lines of a file."""
    try:
        lines = Path(file).read_text("utf-8").split("\n")
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read {str(file)!r}: {reason(error)}") from None
    if not lines[-1]:
        lines.pop()
    for number, line in enumerate(lines, 1):
        if not line.strip():
            raise ConfigError(f"line {number:,} of {str(file)!r} is empty; each holds a source")
    if not lines:
        raise ConfigError(f"{str(file)!r} is empty; write a source in each line")
    return tuple(lines)
