"""How much memory does this need at its worst moment?

>>> def double_twice():
...     x = torch.zeros(1000)            # 4,000 bytes
...     x = x * 2                        # 4,000 more, then the first are freed
...     return x.view(10, 100) * 2       # a view is no memory of its own
>>> peak_memory(double_twice).peak_bytes
8000

Live tensor bytes are counted, not what an allocator holds: the same program gives the
same number in every run, and on every machine that picks the same operators. Seen is
each storage that an operator returns, from then until its last tensor dies, those that
autograd saves included. Not seen are the scratch memory inside one operator, such as the
tiles of a fused attention, and tensors that are sparse or packed for oneDNN.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from parformer.records import Record


@dataclass(frozen=True, kw_only=True, slots=True)
class PeakMemory(Record):
    """The worst moment of a run, in bytes of live tensors."""

    peak_bytes: int
    """The most that was alive at once, the resident tensors included."""

    resident_bytes: int
    """What the resident tensors held before the run."""

    allocated_bytes: int
    """All that the run allocated, as if nothing had been freed."""

    @property
    def working_bytes(self) -> int:
        """What the worst moment needed on top of the resident tensors."""
        return self.peak_bytes - self.resident_bytes


def peak_memory(
    function: Callable[[], object], *, resident: Iterable[torch.Tensor] = ()
) -> PeakMemory:
    """Run the function once and count the most tensor bytes alive at any time.

    Tensors from before the run, such as a model's parameters, count only if they are
    passed as `resident`. A first backward pass allocates gradients and the next one adds
    to them, so clear the gradients to get a number again.
    """
    # PyTorch imports much of itself for the first watched operator of a process, which
    # would hold on to tensors of the run
    with _Watch(_Ledger()):
        torch.empty(0)

    ledger = _Ledger()
    ledger.note(resident, ours=True)
    resident_bytes = ledger.live

    # when Python collects cycles is a matter of luck; with the collector paused they stay
    with collector_paused(), _Watch(ledger):
        function()
    return PeakMemory(
        peak_bytes=ledger.peak,
        resident_bytes=resident_bytes,
        allocated_bytes=ledger.allocated - resident_bytes,
    )


@contextmanager
def collector_paused() -> Iterator[None]:
    """No garbage collection inside; afterwards as before."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class _Ledger:
    """Which storages are alive, each counted once however many tensors view it."""

    def __init__(self) -> None:
        self.live = 0
        self.peak = 0
        self.allocated = 0
        self._sizes: dict[int, int] = {}
        self._foreign: set[int] = set()
        self._references: dict[int, weakref.ref[torch.UntypedStorage]] = {}

    def note(self, things: Iterable[object], *, ours: bool) -> None:
        """See the tensors among these; a storage not ours when first seen never counts."""
        for thing in things:
            if isinstance(thing, torch.Tensor) and thing.layout is torch.strided:
                storage = thing.untyped_storage()
                key = id(storage)
                if key not in self._references:
                    self._references[key] = weakref.ref(storage, partial(self._forget, key))
                    self._sizes[key] = 0
                    if not ours:
                        self._foreign.add(key)
                if key not in self._foreign:
                    self._resize(key, storage.nbytes())

    def _resize(self, key: int, size: int) -> None:
        growth = size - self._sizes[key]
        self._sizes[key] = size
        self.live += growth
        self.allocated += max(growth, 0)
        self.peak = max(self.peak, self.live)

    def _forget(self, key: int, _: weakref.ref[torch.UntypedStorage]) -> None:
        self.live -= self._sizes.pop(key)
        self._foreign.discard(key)
        del self._references[key]


class _Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Shows the ledger what goes into every operator and what comes out."""

    def __init__(self, ledger: _Ledger) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.ledger = ledger

    def __torch_dispatch__(
        self,
        func: Any,
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        # in inference mode a linear layer or an attention arrives whole: look inside
        with self:
            result = func.decompose(*args, **kwargs)
        if result is not NotImplemented:
            return result

        # torch.tensor() makes its data unseen, then hands it to lift_fresh
        fresh = func is torch.ops.aten.lift_fresh.default
        self.ledger.note(tree_leaves((args, kwargs)), ours=fresh)
        result = func(*args, **kwargs)
        self.ledger.note(tree_leaves(result), ours=True)
        return result
