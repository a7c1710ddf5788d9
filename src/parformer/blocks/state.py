"""What is remembered of the past, as a tree of tensors?

A state can be taken apart and put together again: for a checkpoint, for the rows of a beam or of
a server's batch, for a graph that `torch.export` makes. Every tensor has the batch first.
"""

# b batch

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Self, TypeVar

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from parformer.errors import InputError

S = TypeVar("S")


def register(
    cls: type[S],
    flatten: Callable[[S], Mapping[str, object]],
    unflatten: Callable[[Mapping[str, Any], Any], S],
    context: Callable[[S], Any] = lambda state: None,
) -> None:
    """Let torch take such a state apart wherever it looks for tensors."""

    def take(state: S) -> tuple[list[Any], Any]:
        parts = flatten(state)
        return list(parts.values()), (tuple(parts), context(state))

    def put(values: Any, known: Any) -> S:
        names, more = known
        return unflatten(dict(zip(names, values, strict=True)), more)

    def keyed(state: S) -> tuple[list[Any], Any]:
        values, known = take(state)
        return [(pytree.MappingKey(n), v) for n, v in zip(known[0], values, strict=True)], known

    pytree.register_pytree_node(cls, take, put, flatten_with_keys_fn=keyed)


class BlockState(ABC):
    """What one block remembers of the past; never changed once it was handed out.

    A subclass is a frozen dataclass of tensors, or says by `tensors` and `of` how it becomes one.
    """

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        register(cls, lambda state: state.children(), lambda parts, _: cls.made_of(parts))

    @property
    def trainable(self) -> bool:
        """Whether training may go on from it: not where it depends on weights since changed."""
        return True

    @property
    def batch(self) -> int:
        return next(iter(self.tensors().values())).shape[0]

    @property
    def device(self) -> torch.device:
        return next(iter(self.tensors().values())).device

    @property
    @abstractmethod
    def length(self) -> int:
        """Tokens remembered."""

    def tensors(self) -> dict[str, Tensor]:
        """The remembered numbers, and no more."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}  # type: ignore[arg-type]
        return {name: value for name, value in values.items() if isinstance(value, Tensor)}

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor]) -> Self:
        """The state that `tensors` took apart."""
        return cls(**tensors)

    def children(self) -> Mapping[str, Tensor | BlockState | None]:
        """What torch finds when it takes a state apart: tensors, or states again."""
        return self.tensors()

    @classmethod
    def made_of(cls, children: Mapping[str, Any]) -> Self:
        return cls.of(children)

    def rows(self, index_b: Tensor) -> Self:
        """The past of these rows of the batch, in this order."""
        return self.of({name: t.index_select(0, index_b) for name, t in self.tensors().items()})

    def fitted(self, length: int) -> Self:
        """With so many places, the last ones: what is missing stands before them as absent."""
        return self

    @classmethod
    def join(cls, states: Sequence[Self]) -> Self:
        """The pasts of several batches as one."""
        parts = [state.tensors() for state in states]
        shapes = {tuple((name, t.shape[1:]) for name, t in part.items()) for part in parts}
        if len(shapes) > 1:
            lengths = ", ".join(str(state.length) for state in states)
            raise InputError(f"states of {lengths} tokens cannot be joined; they must agree")
        return cls.of({name: torch.cat([part[name] for part in parts]) for name in parts[0]})

    @property
    def bytes(self) -> int:
        return sum(tensor.numel() * tensor.element_size() for tensor in self.tensors().values())


@dataclass(frozen=True, eq=False)
class GroupState(BlockState):
    """What several blocks remember that stand in the place of one."""

    blocks: tuple[BlockState | None, ...]

    @property
    def trainable(self) -> bool:
        return all(block.trainable for block in self.blocks if block is not None)

    @property
    def batch(self) -> int:
        return max((block.batch for block in self.blocks if block is not None), default=0)

    @property
    def length(self) -> int:
        return max((block.length for block in self.blocks if block is not None), default=0)

    def tensors(self) -> dict[str, Tensor]:
        return {
            f"{number}.{name}": tensor
            for number, block in enumerate(self.blocks)
            if block is not None
            for name, tensor in block.tensors().items()
        }

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor]) -> Self:
        raise AssertionError("names do not tell whose state it was; Block.recall does")

    def children(self) -> Mapping[str, Tensor | BlockState | None]:
        return {str(number): block for number, block in enumerate(self.blocks)}

    @classmethod
    def made_of(cls, children: Mapping[str, Any]) -> Self:
        return cls(tuple(children.values()))

    def rows(self, index_b: Tensor) -> Self:
        return type(self)(rows_of(self.blocks, index_b))

    def fitted(self, length: int) -> Self:
        return type(self)(fit_blocks(self.blocks, length))

    @classmethod
    def join(cls, states: Sequence[Self]) -> Self:
        return cls(join_blocks([state.blocks for state in states]))


def together(blocks: Sequence[BlockState | None]) -> GroupState | None:
    """One state of several; None where there is nothing to remember."""
    return GroupState(tuple(blocks)) if any(block is not None for block in blocks) else None


def apart(tensors: Mapping[str, Tensor], count: int) -> list[dict[str, Tensor]]:
    """The tensors of a group by the place of the block that they belong to."""
    own: list[dict[str, Tensor]] = [{} for _ in range(count)]
    for name, tensor in tensors.items():
        number, _, part = name.partition(".")
        own[int(number)][part] = tensor
    return own


def rows_of(blocks: Sequence[BlockState | None], index_b: Tensor) -> tuple[BlockState | None, ...]:
    return tuple(None if block is None else block.rows(index_b) for block in blocks)


def fit_blocks(blocks: Sequence[BlockState | None], length: int) -> tuple[BlockState | None, ...]:
    return tuple(None if block is None else block.fitted(length) for block in blocks)


def join_blocks(several: Sequence[Sequence[BlockState | None]]) -> tuple[BlockState | None, ...]:
    """Block by block, the states of several batches as one."""
    joined: list[BlockState | None] = []
    for blocks in zip(*several, strict=True):
        known = [block for block in blocks if block is not None]
        if known and (len(known) < len(blocks) or len({type(block) for block in known}) > 1):
            raise InputError("states of different kinds cannot be joined; read all alike first")
        joined.append(type(known[0]).join(known) if known else None)
    return tuple(joined)
