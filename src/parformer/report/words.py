"""How are numbers, names and differences told to people?

>>> listed(["one", "two", "three"]), counted(2100, "layer"), megabytes(41_943_040)
('one, two and three', '2,100 layers', '41.9 MB')
>>> Unit.of("byte").told(1.52), Unit.of("bpe").told(1.52)
('2.193 bits per byte', 'perplexity 4.572')
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from parformer.search.limits import UNITS, in_words

NAMES = {
    "latency": "latency",
    "memory": "peak memory",
    "flops": "FLOPs",
    "parameters": "parameters",
    "state": "state",
    "size": "size",
}
"""What can be limited, as people write it."""

Ends = tuple[float, float]
"""An interval."""


@dataclass(frozen=True, slots=True)
class Unit:
    """What a loss is told in: bits where tokens are letters, else perplexity; plain as it is."""

    name: str
    words: str

    @classmethod
    def of(cls, tokenizer: str) -> Unit:
        if tokenizer in ("byte", "used-bytes", "character"):
            return cls("bits", f"bits per {'character' if tokenizer == 'character' else 'byte'}")
        return cls("perplexity", "perplexity")

    def value(self, loss: float | None) -> float | None:
        """The number that people know; lower is better."""
        if loss is None or not math.isfinite(loss):
            return None
        if self.name == "plain":
            return loss
        if self.name != "perplexity":
            return loss / math.log(2)
        return math.exp(loss) if loss < 100 else None

    def number(self, loss: float | None) -> str:
        value = self.value(loss)
        if value is None:
            return "–"
        return f"{value:,.4g}" if self.name in ("perplexity", "plain") else f"{value:.3f}"

    def told(self, loss: float | None) -> str:
        both = [self.number(loss), self.words]
        return " ".join(both[::-1] if self.name == "perplexity" else both)


def listed(words: Sequence[str]) -> str:
    """Words as a sentence lists them.

    >>> listed(["one"]), listed([])
    ('one', '')
    """
    return " and ".join(filter(None, [", ".join(words[:-1]), *words[-1:]]))


def counted(number: float | None, what: str) -> str:
    """A number of things.

    >>> counted(1, "layer"), counted(None, "layer")
    ('1 layer', '– layers')
    """
    return f"– {what}s" if number is None else f"{number:,.0f} {what}{'s' * (number != 1)}"


def span(values: Iterable[int]) -> str:
    """From the least to the most.

    >>> span([4, 2, 8]), span([1024]), span([])
    ('2–8', '1,024', '–')
    """
    known = sorted(set(values))
    ends = [known[0], *known[1:][-1:]] if known else []
    return "–".join(f"{end:,}" for end in ends) or "–"


def megabytes(count: float) -> str:
    """Bytes, with one digit after the point.

    >>> megabytes(800), megabytes(0)
    ('800 B', 'none')
    """
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count:g} B" if count else "none"


def gigaflops(flops: float) -> str:
    """FLOPs of a step.

    >>> gigaflops(2.5e9), gigaflops(2.5e6), gigaflops(0)
    ('2.50 G', '2.50 M', 'none')
    """
    if not flops:
        return "none"
    return f"{flops / 1e9:.2f} G" if flops >= 1e8 else f"{flops / 1e6:.2f} M"


def duration(seconds: float) -> str:
    """A short time, with three digits.

    >>> duration(0.0123), duration(0.00005)
    ('12.3 ms', '50 µs')
    """
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 1e-6:.3g} µs"


def long_time(seconds: float) -> str:
    """A time that may be hours; seconds are told below ten minutes.

    >>> long_time(240.1), long_time(351), long_time(7530), long_time(0.25)
    ('4 min', '5 min 51 s', '2 h 6 min', '250 ms')
    """
    if seconds < 100:
        return duration(seconds)
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 10:
        return f"{minutes} min {rest} s" if rest else f"{minutes} min"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"


def unit_of(metric: str, values: Iterable[float]) -> tuple[str, float]:
    """The unit that suits the largest of some values, and its size.

    >>> unit_of("latency", [0.003, 0.02]), unit_of("flops", [12.0])
    (('ms', 0.001), ('', 1.0))
    """
    _, _, unit = in_words(metric, max(values, default=1.0)).partition(" ")
    return unit, UNITS[metric][unit]


def amount(metric: str, value: float | None) -> str:
    """A figure of a model, or a dash."""
    return "–" if value is None else in_words(metric, value)


def interval(low: float, high: float) -> str:
    """Two times, with one unit where one is enough.

    >>> interval(0.0213, 0.0221), interval(0.0009, 0.0011)
    ('21.3 – 22.1 ms', '900 µs – 1.1 ms')
    """
    first, last = in_words("latency", low), in_words("latency", high)
    alike = first.split()[-1] == last.split()[-1]
    return f"{first.split()[0] if alike else first} – {last}"


def overlap(first: Ends, second: Ends) -> bool:
    """Whether two measurements cannot be told apart.

    >>> overlap((1.0, 2.0), (1.5, 3.0)), overlap((1.0, 2.0), (2.5, 3.0))
    (True, False)
    """
    return first[0] <= second[1] and second[0] <= first[1]


def went(first: float, last: float) -> str:
    """From where to where something went.

    >>> went(2.0, 1.5), went(2.0, 2.0001)
    ('fell from 2 to 1.5', 'stayed at 2')
    """
    ends = [f"{end:.3g}" for end in (first, last)]
    if ends[0] == ends[1]:
        return f"stayed at {ends[0]}"
    return f"{'fell' if last < first else 'rose'} from {ends[0]} to {ends[1]}"


def signed(share: float, digits: int = 1) -> str:
    """A difference in percent that shows its sign.

    >>> signed(-0.0131), signed(0.004), signed(0.0001)
    ('−1.3%', '+0.4%', '0.0%')
    """
    words = f"{share:+.{digits}%}".replace("-", "−")
    return words if float(f"{share:.{digits + 2}f}") else words[1:]


def between(ends: Ends, digits: int = 1) -> str:
    """An interval of differences.

    >>> between((-0.004, 0.022)), between((-0.32, 0.001), 0)
    ('−0.4% to +2.2%', '−32% to 0%')
    """
    return " to ".join(signed(end, digits) for end in ends)


def percent(share: float) -> str:
    """A round share, without digits that say nothing.

    >>> percent(0.01), percent(0.025)
    ('1%', '2.5%')
    """
    return f"{100 * share:.2g}%"


def worse_words(share: float) -> str:
    """A difference of losses in a sentence.

    >>> worse_words(0.013), worse_words(-0.02), worse_words(0.0002)
    ('1.3% worse', '2.0% better', 'equally good')
    """
    if f"{abs(share):.1%}" == "0.0%":
        return "equally good"
    return f"{abs(share):.1%} {'worse' if share > 0 else 'better'}"


def change_words(mine: float, theirs: float) -> str:
    """How an exact figure compares.

    >>> change_words(620, 1000), change_words(1000, 1000), change_words(999, 1000)
    ('38% less', 'the same', '0.1% less')
    """
    if mine == theirs:
        return "the same"
    if not theirs:
        return "more"
    share = abs(mine / theirs - 1)
    digits = f"{share:.0%}" if share >= 0.01 else f"{share:.1%}" if share >= 0.001 else "under 0.1%"
    return f"{digits} {'less' if mine < theirs else 'more'}"


def limits_words(limits: Mapping[str, float], multiples: Mapping[str, float]) -> list[str]:
    """Every limit as it was asked for; `multiples` are those of the baseline's own figures.

    >>> limits_words({"latency": 0.005, "memory": 1e6}, {"latency": 0.8})
    ["latency at most 0.8× the baseline's", 'peak memory at most 1 MB']
    """
    return [f"{NAMES[m]} at most {limit_words(limits, multiples, m)}" for m in limits]


def limit_words(limits: Mapping[str, float], multiples: Mapping[str, float], metric: str) -> str:
    if metric in multiples:
        return f"{multiples[metric]:g}× the baseline's"
    return in_words(metric, limits[metric])
