"""On which machine was something found?"""

from __future__ import annotations

from dataclasses import dataclass

from parformer.measure.device import Device
from parformer.records import Record


@dataclass(frozen=True, kw_only=True)
class Machine(Record):
    """What a reader wants to know of a device."""

    cpu: str
    threads: int
    torch: str

    @classmethod
    def of(cls, device: Device, threads: int = 0) -> Machine:
        return cls(cpu=device.cpu, threads=threads or device.threads, torch=device.torch)

    def words(self) -> str:
        """The machine in a line.

        >>> Machine(cpu="ARM", threads=1, torch="2.13.0+cpu").words()
        'ARM, 1 thread, torch 2.13.0'
        """
        threads = f"{self.threads:,} thread{'s' * (self.threads != 1)}"
        return f"{self.cpu}, {threads}, torch {self.torch.partition('+')[0]}"
