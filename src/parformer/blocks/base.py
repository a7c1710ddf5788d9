"""What is a block, and what may it know?

A block is one file: its letter, its maths and its exact cost. It reads and writes the
stream (batch, time, width), residual sum and norm included, and returns what it must
remember of the past. Registering it here is all it takes to be used in a pattern.
"""

# b batch, t time, d width

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, ClassVar, TypeAlias, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from parformer.blocks.linear import Affine, Direct, LayerNorm
from parformer.blocks.places import Places
from parformer.blocks.state import BlockState
from parformer.blocks.taps import Taps
from parformer.errors import ConfigError, FolderError
from parformer.fields import need_at_least
from parformer.notation import add_letter, drop_letter
from parformer.parts import StackConfig
from parformer.pattern import ALPHABET, BlockSpec, Value

Options: TypeAlias = Mapping[str, Value]
"""What stands in brackets after a letter."""

BYTES = 4
"""Bytes of one remembered number: costs are quoted in fp32."""


TOKEN_BYTES = 8
"""Bytes of a remembered token."""


@dataclass(frozen=True, slots=True)
class Shape:
    """The step that is priced: new tokens, and remembered ones before them."""

    batch: int
    tgt_len: int
    mem_len: int
    memory: int
    """Tokens remembered when memory is full."""
    source: int = 0
    """Tokens that an encoder has read, for cross-attention."""

    def __post_init__(self) -> None:
        need_at_least("batch", self.batch, 1)
        need_at_least("tgt_len", self.tgt_len, 1)
        need_at_least("mem_len", self.mem_len, 0)
        need_at_least("source", self.source, 0)

    @property
    def keys(self) -> int:
        return self.mem_len + self.tgt_len


@dataclass(frozen=True, slots=True)
class Cost:
    """What a block has and does; two FLOPs per multiply-add."""

    parameters: int = 0
    flops: int = 0
    """Per step, with the memory projected again: the papers' way, and training's."""
    flops_cached: int = 0
    """Per step, with projected keys and values remembered: inference."""
    state_bytes_per_token: int = 0
    state_bytes: int = 0
    """With memory full, for the whole batch."""
    constants: int = 0
    """Numbers that are saved with the weights and never learned."""

    def shared(self) -> Cost:
        """The same work with parameters that are counted elsewhere."""
        return replace(self, parameters=0, constants=0)

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            self.parameters + other.parameters,
            self.flops + other.flops,
            self.flops_cached + other.flops_cached,
            self.state_bytes_per_token + other.state_bytes_per_token,
            self.state_bytes + other.state_bytes,
            self.constants + other.constants,
        )


@dataclass(frozen=True, slots=True)
class Source:
    """What cross-attention looks at: the encoder's vectors."""

    vectors_bsd: Tensor
    padding: Tensor | None = None
    """(batch, source), true where there is a token."""


@dataclass(frozen=True, slots=True)
class Context:
    """What all blocks share in one step."""

    memory: int
    """Tokens that a state may keep after this step."""
    position: int = 0
    """Tokens read before this step."""
    padding: Tensor | None = None
    """(batch, keys), true where there is a token: those remembered, then those of this step."""
    source: Source | None = None
    """What an encoder made, in the step that brings it; later steps remember it."""
    places: Places | None = None
    """Embedded distances, and biases that all blocks of this stack share."""
    tokens: Tensor | None = None
    """(batch, time), those of this step, where a model reads them."""
    taps: Taps | None = None
    """Who listens to the blocks: attention maps, distillation, pruning."""
    starts_b: Tensor | None = None
    """Places before each row's first token, where rows have read different numbers of tokens."""
    feed: tuple[Tensor, ...] = ()
    """What a bottleneck has its attention read instead of the stream inside."""
    memo: dict[tuple[object, ...], Any] = field(default_factory=dict)

    @property
    def shows_weights(self) -> bool:
        """Whether somebody wants attention's weights, which fused kernels do not give."""
        return self.taps is not None and "weights" in self.taps.wanted

    def once(self, key: tuple[object, ...], make: Callable[[], Any]) -> Any:
        """What `make` gives, made by the first block of a step that asks for it."""
        if torch.compiler.is_exporting():
            return make()  # sizes that are not known yet are no keys
        if key not in self.memo:
            self.memo[key] = make()
        return self.memo[key]


class Block(Direct, ABC):
    """One step of the stream."""

    letter: ClassVar[str]
    options: ClassVar[Mapping[str, type]] = {}
    """The options that may follow the letter, and their types."""
    summands: ClassVar[Sequence[str]] = ()
    """Bare words of which one may stand there, or a sum of several, as in `y[dense+vanilla]`."""
    words: ClassVar[Mapping[str, Sequence[str]]] = {}
    """The words that an option may be, where there are only a few."""
    training_state: ClassVar[type[BlockState] | None] = None
    """What its memory is while training; None if it has none."""
    state_needs_run: ClassVar[bool] = False
    """Whether only running the block tells what it has to remember (recurrence)."""

    def __init__(self, config: StackConfig) -> None:
        super().__init__()
        self.pre_norm = config.norm == "pre"
        self.norm = make_norm(config)
        self.dropout = config.dropout

    @abstractmethod
    def forward(
        self, x_btd: Tensor, state: BlockState | None, context: Context
    ) -> tuple[Tensor, BlockState | None]:
        """The stream after this block, and what to remember."""

    @classmethod
    def make(cls, config: StackConfig, spec: BlockSpec) -> Block:
        """The block that a pattern asks for."""
        return cls(config, spec)  # type: ignore[call-arg]

    def draw(self, generator: torch.Generator) -> set[nn.Parameter]:
        """First weights that are this block's own business; which ones it has drawn."""
        return set()

    def zeros(self, batch: int, memory: int) -> BlockState | None:
        """A memory full of zeros, for blocks that have one to fill."""
        return None

    def remember(
        self, x_btd: Tensor, state: BlockState | None, context: Context
    ) -> BlockState | None:
        """What training would remember after this step, for a block that need not run for it."""
        return None

    def recall(self, tensors: Mapping[str, Tensor]) -> BlockState:
        """The training memory that `BlockState.tensors` took apart."""
        if self.training_state is None:
            raise FolderError(f"the checkpoint remembers something for a block {self.letter!r}")
        return self.training_state.of(tensors)

    @classmethod
    @abstractmethod
    def cost(cls, config: StackConfig, spec: BlockSpec, shape: Shape) -> Cost:
        """Exactly what the built block has and does; builds nothing."""

    def read(self, x_btd: Tensor) -> Tensor:
        """What the block's maths sees of the stream."""
        return self.norm(x_btd) if self.pre_norm else x_btd

    def write(self, x_btd: Tensor, y_btd: Tensor) -> Tensor:
        """The stream with the block's answer added."""
        if self.training and self.dropout:
            y_btd = F.dropout(y_btd, self.dropout)
        sum_btd = x_btd + y_btd
        return sum_btd if self.pre_norm else self.norm(sum_btd)


BLOCKS: dict[str, type[Block]] = {}
"""The block of every letter."""
GROUPS: dict[str, type[Block]] = {}
"""The block of every bracket that has a pattern inside."""

B = TypeVar("B", bound=type[Block])


def block(letter: str, name: str = "") -> Callable[[B], B]:
    """Register a block under a letter of the alphabet, or with a `name` under a letter of its own.

    The second way is for code outside of Parformer; `forget` takes it back.
    """

    def register(cls: B) -> B:
        if name:
            add_letter(letter, name)
        assert letter in ALPHABET, letter
        assert letter not in BLOCKS, letter
        cls.letter = letter
        BLOCKS[letter] = cls
        find_block.cache_clear()
        return cls

    return register


def forget(letter: str) -> None:
    """Take back a block that was registered with a letter of its own."""
    drop_letter(letter)
    del BLOCKS[letter]
    find_block.cache_clear()


@lru_cache(maxsize=4096)
def find_block(spec: BlockSpec) -> type[Block]:
    """The class that builds this block, once its options are known to be fine."""
    if spec.letter not in BLOCKS and spec.letter not in GROUPS:
        raise ConfigError(
            f"no block {spec.letter!r} is registered; import the file that does, or take one of "
            f"{' '.join(sorted(BLOCKS))}"
        )
    cls = BLOCKS.get(spec.letter) or GROUPS[spec.letter]
    known = {**cls.options, "share": str} if spec.letter in BLOCKS else cls.options
    for name, value in spec.options.items():
        if value is True and {*name.split("+")} <= {*cls.summands}:
            continue
        if name not in known:
            names = ", ".join(sorted(known))
            kinds = f"; known kinds, and sums of them with +: {', '.join(cls.summands)}"
            raise ConfigError(
                f"unknown option {name!r} in {str(spec)!r}; known options: {names}"
                + (kinds if cls.summands else "")
            )
        if type(value) is not known[name] and (type(value), known[name]) != (int, float):
            raise ConfigError(
                f"option {name!r} in {str(spec)!r} takes {a_kind(known[name])}, got {value!r}"
            )
        if known[name] is int and isinstance(value, int) and value < 1:
            raise ConfigError(f"option {name!r} in {str(spec)!r} must be at least 1, got {value}")
        if name in cls.words and value not in cls.words[name]:
            known_kinds = ", ".join(cls.words[name])
            raise ConfigError(f"unknown {name} in {str(spec)!r}, {value!r}; known: {known_kinds}")
    return cls


def a_kind(kind: type) -> str:
    return {int: "a whole number", float: "a number", str: "a word", bool: "no value"}[kind]


def make_norm(config: StackConfig, width: int = 0) -> nn.Module:
    width = width or config.d_model
    if config.norm_type == "rms":
        return nn.RMSNorm(width, eps=config.norm_eps)
    if config.norm_type == "affine":
        return Affine(width)
    return LayerNorm(width, eps=config.norm_eps)


def norm_parameters(config: StackConfig, width: int = 0) -> int:
    return (width or config.d_model) * (1 if config.norm_type == "rms" else 2)


def linear_cost(inputs: int, outputs: int, tokens: int, *, bias: bool, share: float = 1.0) -> Cost:
    """One linear map of this many tokens (or a share of them), none of them remembered."""
    flops = round(2 * inputs * outputs * tokens * share)
    return Cost(inputs * outputs + (outputs if bias else 0), flops, flops)
