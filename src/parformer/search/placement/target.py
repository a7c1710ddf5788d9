"""What is a search for placements to save?"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

from parformer.errors import ConfigError
from parformer.fields import check_names
from parformer.notation import shown
from parformer.records import Json, Record
from parformer.search.limits import read_limit

COUNTED = {"flops": "flops", "parameters": "parameters", "state": "state_bytes"}
"""What `parformer cost` calls each metric that needs no clock."""

METRICS = (*COUNTED, "latency")


@dataclass(frozen=True, kw_only=True, slots=True)
class Target(Record):
    """What a search is to save: by a fixed penalty, or so that a limit is kept."""

    metric: str
    penalty: float | None = None
    """How much of the loss the interleaved model's whole cost is worth."""
    limit: float | None = None
    """What the model may cost at most, as a multiple of the interleaved one."""

    def to_dict(self) -> Json:
        """The one of both that there is."""
        return {name: value for name, value in asdict(self).items() if value is not None}


def read_target(penalty: str, limit: str) -> Target | None:
    """What the command line says about cost; both texts empty means that it does not matter.

    >>> read_target("flops=0.1", "")
    Target(metric='flops', penalty=0.1, limit=None)
    >>> read_target("", "latency=0.7x").limit
    0.7
    """
    if penalty and limit:
        raise ConfigError(
            f"both a penalty, {shown(penalty)}, and a limit, {shown(limit)}; give one of them: "
            "a limit finds its own penalty"
        )
    if penalty:
        metric, equals, text = (part.strip() for part in penalty.partition("="))
        if not equals:
            raise ConfigError(f"cannot read penalty {shown(penalty)}; write it as flops=0.1")
        check_names([metric], METRICS, "metric of a penalty")
        try:
            number = float(text)
        except ValueError:
            number = math.nan
        if not 0 < number < math.inf:
            raise ConfigError(
                f"penalty {shown(penalty)} must be a number above 0, such as {metric}=0.1"
            )
        return Target(metric=metric, penalty=number)
    if limit:
        read = read_limit(limit, METRICS)
        if not read.relative:
            raise ConfigError(
                f"limit {shown(limit)} must be a multiple of the interleaved model's "
                f"{read.metric}, such as {read.metric}=0.7x; amounts are for 'search sizes' "
                "and 'fit'"
            )
        return Target(metric=read.metric, limit=read.most)
    return None
