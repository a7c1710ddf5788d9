"""How fast, how large, on which machine, and is the difference real?"""

from parformer.measure.device import Device, Receipt, describe_device, pinned_threads
from parformer.measure.latency import Comparison, Remade, Timing, measure_latency
from parformer.measure.memory import PeakMemory, peak_memory
from parformer.measure.statistics import Difference, compare, median_interval, ties

__all__ = [
    "Comparison",
    "Device",
    "Difference",
    "PeakMemory",
    "Receipt",
    "Remade",
    "Timing",
    "compare",
    "describe_device",
    "measure_latency",
    "median_interval",
    "peak_memory",
    "pinned_threads",
    "ties",
]
