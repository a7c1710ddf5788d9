"""Who makes the native decoder of a model, and keeps it for the next text?

Compiling a model takes milliseconds, and packing its weights longer. So a decoder that was lent
and came back is lent again, as long as the model has the weights that it was made from. Where
there is none, the reason is told once.
"""

from __future__ import annotations

import logging
import os
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from parformer.native.decoder import Decoder
from parformer.native.program import NoForm, NotMeant

log = logging.getLogger(__name__)

KEPT = 4
"""Decoders of one model that wait for a text at most."""

Key = tuple[object, ...]

_waiting: weakref.WeakKeyDictionary[nn.Module, list[tuple[Key, Decoder]]]
_waiting = weakref.WeakKeyDictionary()
_told: set[str] = set()


@contextmanager
def lent(model: nn.Module, make: Callable[[], Decoder], *sizes: object) -> Iterator[Decoder | None]:
    """A decoder for texts of these sizes; None where the ordinary step has to do."""
    key = (*sizes, os.getpid(), torch.get_num_threads(), weights_of(model))
    decoder = find(model, key)
    if decoder is None:
        try:
            decoder = make()
        except NoForm as reason:
            tell(reason)
    try:
        yield decoder
    finally:
        if decoder is not None:
            waiting = _waiting.setdefault(model, [])
            waiting[:] = [pair for pair in waiting if pair[0][-1] == key[-1]][1 - KEPT :]
            waiting.append((key, decoder))


def find(model: nn.Module, key: Key) -> Decoder | None:
    """One that waits; whoever finds it has it alone."""
    waiting = _waiting.get(model, [])
    for place, (known, _) in enumerate(waiting):
        if known == key:
            return waiting.pop(place)[1]
    return None


def weights_of(model: nn.Module) -> Key:
    """What changes whenever a weight does."""
    return tuple(map(stamp, (*model.parameters(), *model.buffers())))


def stamp(tensor: Tensor) -> tuple[int, int]:
    return tensor.data_ptr(), 0 if tensor.is_inference() else tensor._version


def tell(reason: NoForm) -> None:
    text = str(reason)
    if isinstance(reason, NotMeant) or text in _told:
        return
    _told.add(text)
    log.warning("tokens are written by the ordinary step, several times slower: %s", text)
