"""How fast, how large, on which machine, is the difference real? `pf.measure` is this, called."""

from typing import TYPE_CHECKING

from parformer.verbs import speak

if TYPE_CHECKING:
    from parformer.measure.device import Device as Device
    from parformer.measure.device import Receipt as Receipt
    from parformer.measure.device import describe_device as describe_device
    from parformer.measure.device import pinned_threads as pinned_threads
    from parformer.measure.latency import Comparison as Comparison
    from parformer.measure.latency import Remade as Remade
    from parformer.measure.latency import Timing as Timing
    from parformer.measure.latency import measure_latency as measure_latency
    from parformer.measure.memory import PeakMemory as PeakMemory
    from parformer.measure.memory import peak_memory as peak_memory
    from parformer.measure.statistics import Difference as Difference
    from parformer.measure.statistics import compare as compare
    from parformer.measure.statistics import median_interval as median_interval
    from parformer.measure.statistics import ties as ties

LATE = {
    "device": ("Device", "Receipt", "describe_device", "pinned_threads"),
    "latency": ("Comparison", "Remade", "Timing", "measure_latency"),
    "memory": ("PeakMemory", "peak_memory"),
    "statistics": ("Difference", "compare", "median_interval", "ties"),
}

speak(
    __name__,
    "parformer.measure.request:measure",
    {name: f"{__name__}.{home}" for home, names in LATE.items() for name in names},
)
