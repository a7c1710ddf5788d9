"""What can one ask of a measurement?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from parformer.config import ModelConfig
from parformer.events import Listener, Watch, nobody
from parformer.naming import CostRequest
from parformer.verbs import requested, within_memory

if TYPE_CHECKING:
    from parformer.measure.models import MeasuredModels, Runtime


@dataclass(frozen=True, kw_only=True)
class MeasureRequest(CostRequest):
    """Models to build and time side by side on this machine."""

    clamp_len: int | None = None
    """Distances beyond count as this."""
    rounds: int = 30
    """Times that each model is timed."""
    threads: int | None = None
    """CPU threads."""
    precision: Literal["fp32", "bf16"] = "fp32"
    """Of all numbers."""
    packed: bool = False
    """Lay weights out for this step first: faster with MKL, twice the memory."""
    seed: int = 0
    """Of weights and tokens."""

    def configs(self) -> dict[str, ModelConfig]:
        found = super().configs()
        if self.clamp_len is None:
            return found
        return {name: c.replaced(clamp_len=self.clamp_len) for name, c in found.items()}


def measure(
    request: MeasureRequest | None = None,
    *,
    watch: Listener = nobody,
    runtime: Runtime | None = None,
    **given: Any,
) -> MeasuredModels:
    """Build models with random weights and measure one step of each, interleaved.

    `runtime` makes the step that is timed, where it is not torch that will run it, such as
    `parformer.export.measuring.onnx_step`.
    """
    asked = requested(MeasureRequest, request, given)
    configs = asked.configs()
    from parformer.costs import cost
    from parformer.measure.models import measure_models

    def needs() -> str:
        count = sum(cost(config).parameters for config in configs.values())
        each = (4 if asked.precision == "fp32" else 2) * (2 if asked.packed else 1)
        return (
            f"{count:,} parameters of all models take at least {each * count / 1e6:,.0f} MB; "
            "measure fewer at once, or smaller ones"
        )

    with within_memory(needs):
        return measure_models(
            configs,
            tgt_len=asked.tgt_len,
            mem_len=asked.mem_len,
            batch=asked.batch,
            rounds=asked.rounds,
            threads=asked.threads,
            precision=asked.precision,
            packed=asked.packed,
            seed=asked.seed,
            progress=Watch(watch).preparing,
            runtime=runtime,
        )
