"""Where do a Synthesizer's scores come from, if not from queries and keys?

    dense            a token writes its own scores: W₂ relu(W₁ x), a column for every place
    random, fixed    a table that knows no text: learned, or left as it was drawn
    factored-random  such a table as R₁ R₂ᵀ
    factored-dense   the columns of dense as products: column j is A[j // b] · B[j mod b]

Each head has weights of its own and, where it reads, its own slice of the stream (Tay et al. 2020).
With `released` they are those of the authors' code instead, where that differs; for
factored-dense, which it lacks, those of the reading that tiles both factors.
"""

# b batch, t time, n keys, d width, h heads, i slice of the stream, k head width, r rank, N length

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from parformer.blocks.base import Cost, Options, Shape, linear_cost
from parformer.blocks.linear import HeadLinear, Linear, stretch
from parformer.errors import ConfigError
from parformer.parts import StackConfig
from parformer.pattern import BlockSpec

KINDS = ("dense", "factored-dense", "factored-random", "fixed", "random", "vanilla")
VANILLA = "vanilla"
LENGTH = 256
"""Places of a table where the model has no window."""
RANK = 8
"""Of a factored table, as in the paper."""


class Sizes(NamedTuple):
    """What a block's options mean."""

    kinds: tuple[str, ...]
    heads: int
    width: int
    """Of one head."""
    length: int
    """Places that a table knows."""
    rank: int
    a: int
    b: int
    """Factors of factored-dense."""
    released: bool

    @property
    def inside(self) -> int:
        return self.heads * self.width

    @property
    def asks(self) -> bool:
        """Whether there are queries: vanilla has them, and the authors' dense reads them."""
        return VANILLA in self.kinds or (self.released and "dense" in self.kinds)

    @property
    def remembered(self) -> int:
        """Numbers of a token that later ones need: its values, and keys for vanilla."""
        return self.inside * (2 if VANILLA in self.kinds else 1)

    def keys(self, shape: Shape) -> int:
        """What a step looks at, at most."""
        return min(shape.keys, self.length)


def sizes_of(config: StackConfig, spec: BlockSpec) -> Sizes:
    """The sizes of a block, if they fit together and the stack around it."""
    options, text = spec.options, str(spec)
    kinds = kinds_of(options, text)
    heads = int(options.get("heads", config.n_head))
    length = int(options.get("length", config.max_len or LENGTH))
    a = int(options.get("a", math.isqrt(length - 1) + 1))
    b = int(options.get("b", -(-length // a)))
    width = int(options["head"]) if "head" in options else config.head_width(heads)
    rank, released = int(options.get("rank", RANK)), "released" in options
    sizes = Sizes(kinds, heads, width, length, rank, a, b, released)
    check_window(config, length, text)
    if "alpha" in options and len(kinds) == 1:
        raise ConfigError(f"alpha in {text!r} weighs the parts of a sum, and there is only one")
    if a * b < length and not released:
        raise ConfigError(f"a={a} times b={b} in {text!r} are fewer than its length {length}")
    sliced = not released and {"dense", "factored-dense"} & {*kinds}
    if sliced and config.d_model % heads:
        raise ConfigError(
            f"{heads} heads do not divide d_model {config.d_model}, and each head of {text!r} "
            "reads a slice of its own; set heads= to a divisor"
        )
    return sizes


def kinds_of(options: Options, text: str) -> tuple[str, ...]:
    """The parts of a block's sum, in the order of the alphabet."""
    named = [name for name in options if set(name.split("+")) <= {*KINDS}]
    if len(named) > 1:
        raise ConfigError(f"two kinds in {text!r}; write their sum as {'+'.join(named)}")
    kinds = tuple(sorted(named[0].split("+"))) if named else ("dense",)
    if len(set(kinds)) < len(kinds):
        raise ConfigError(f"a kind comes twice in {text!r}; give each once")
    if kinds == (VANILLA,):
        raise ConfigError(f"{text!r} is attention and nothing else; write s, or add a kind to it")
    return kinds


def check_window(config: StackConfig, length: int, text: str) -> None:
    """Refuse a table that ends before what the model reads at once."""
    window, name = config.tgt_len, "tgt_len"
    if config.numbered:
        window, name = config.max_len, "the window max_len"
    if window > length:
        raise ConfigError(
            f"{name} {window} is beyond the length {length} of {text!r}; "
            f"write length={window} or more"
        )


class Scores(nn.Module):
    """A part of the sum: scores (batch or 1, heads, time, keys)."""

    def __init__(self, config: StackConfig, sizes: Sizes) -> None:
        super().__init__()
        self.sizes = sizes

    def forward(
        self, read_btd: Tensor, q_bhtk: Tensor | None, row: int, column: int, keys: int
    ) -> Tensor:
        """Of tokens from the place `row` on, for `keys` places from `column` on."""
        raise NotImplementedError

    def draw(self, generator: torch.Generator) -> set[nn.Parameter]:
        """First weights that are not drawn by the family's rule; which ones."""
        return set()

    def slices(self, x_btd: Tensor) -> Tensor:
        return x_btd.view(*x_btd.shape[:2], self.sizes.heads, -1).transpose(1, 2)


class Dense(Scores):
    """A token's own scores, for every place there is."""

    def __init__(self, config: StackConfig, sizes: Sizes) -> None:
        super().__init__(config, sizes)
        heads, width = sizes.heads, sizes.width
        self.hidden = self.table = None
        if sizes.released:
            self.shared = Linear(width, sizes.length, bias=False)
        else:
            self.hidden = HeadLinear(heads, config.d_model // heads, width)
            self.table = HeadLinear(heads, width, sizes.length)

    def forward(
        self, read_btd: Tensor, q_bhtk: Tensor | None, row: int, column: int, keys: int
    ) -> Tensor:
        if self.hidden is None or self.table is None:
            assert q_bhtk is not None
            return stretch(self.shared, torch.relu(q_bhtk), column, keys)
        hidden_bhtk = torch.relu(self.hidden(self.slices(read_btd)))
        scores_bhtn: Tensor = self.table(hidden_bhtk, column, keys)
        return scores_bhtn


class FactoredDense(Scores):
    """Scores as products of two short rows, both of the token's own making."""

    def __init__(self, config: StackConfig, sizes: Sizes) -> None:
        super().__init__(config, sizes)
        d, heads, width = config.d_model, sizes.heads, sizes.width
        self.hidden, self.a, self.b = None, nn.Module(), nn.Module()
        if sizes.released:
            self.a = Linear(d, heads * sizes.a, bias=config.attention_bias)
            self.b = Linear(d, heads * sizes.b, bias=config.attention_bias)
        else:
            self.hidden = HeadLinear(heads, d // heads, width)
            self.a, self.b = (HeadLinear(heads, width, n) for n in (sizes.a, sizes.b))

    def forward(
        self, read_btd: Tensor, q_bhtk: Tensor | None, row: int, column: int, keys: int
    ) -> Tensor:
        if self.hidden is None:
            a_bhta, b_bhtb = self.slices(self.a(read_btd)), self.slices(self.b(read_btd))
            place_n = torch.arange(column, column + keys, device=read_btd.device)
            return a_bhta[..., place_n % self.sizes.a] * b_bhtb[..., place_n % self.sizes.b]
        hidden_bhtk = torch.relu(self.hidden(self.slices(read_btd)))
        product = self.a(hidden_bhtk)[..., :, None] * self.b(hidden_bhtk)[..., None, :]
        scores_bhtn: Tensor = product.flatten(-2)[..., column : column + keys]
        return scores_bhtn


class Table(Scores):
    """The same scores whatever the text."""

    def matrix(self, row: int, time: int, column: int, keys: int) -> Tensor:
        """Scores (heads, time, keys) of these places."""
        raise NotImplementedError

    def forward(
        self, read_btd: Tensor, q_bhtk: Tensor | None, row: int, column: int, keys: int
    ) -> Tensor:
        return self.matrix(row, read_btd.shape[1], column, keys)[None]


class Random(Table):
    """A table of all pairs of places."""

    def __init__(self, config: StackConfig, sizes: Sizes) -> None:
        super().__init__(config, sizes)
        self.table_hnn = nn.Parameter(torch.empty(sizes.heads, sizes.length, sizes.length))

    def matrix(self, row: int, time: int, column: int, keys: int) -> Tensor:
        return self.table_hnn[:, row : row + time, column : column + keys]


class Fixed(Table):
    """The same, never learned; it is saved with the weights."""

    table_hnn: Tensor

    def __init__(self, config: StackConfig, sizes: Sizes) -> None:
        super().__init__(config, sizes)
        shape = (sizes.heads, sizes.length, sizes.length)
        self.register_buffer("table_hnn", torch.empty(shape))

    def matrix(self, row: int, time: int, column: int, keys: int) -> Tensor:
        return self.table_hnn[:, row : row + time, column : column + keys]

    def draw(self, generator: torch.Generator) -> set[nn.Parameter]:
        # a spread as small as that of weights would be a plain mean for ever
        self.table_hnn.normal_(0.0, 1.0, generator=generator)
        return set()


class FactoredRandom(Table):
    """A table of all pairs of places that is a product of two narrow ones."""

    def __init__(self, config: StackConfig, sizes: Sizes) -> None:
        super().__init__(config, sizes)
        shape = (sizes.heads, sizes.length, sizes.rank)
        self.rows_hnr = nn.Parameter(torch.empty(shape))
        self.columns_hnr = nn.Parameter(torch.empty(shape))

    def matrix(self, row: int, time: int, column: int, keys: int) -> Tensor:
        columns_hnr = self.columns_hnr[:, column : column + keys]
        if self.sizes.released:
            # the released einsum multiplies place by place: every query gets the same row
            row_hn = (self.rows_hnr[:, column : column + keys] * columns_hnr).sum(-1)
            return row_hn[:, None].expand(-1, time, -1)
        return torch.bmm(self.rows_hnr[:, row : row + time], columns_hnr.mT)

    def draw(self, generator: torch.Generator) -> set[nn.Parameter]:
        # of two small factors neither would learn; these make scores of spread one
        spread = self.sizes.rank**-0.25
        for factor in (self.rows_hnr, self.columns_hnr):
            factor.normal_(0.0, spread, generator=generator)
        return {self.rows_hnr, self.columns_hnr}


PARTS: dict[str, type[Scores]] = {
    "dense": Dense,
    "factored-dense": FactoredDense,
    "factored-random": FactoredRandom,
    "fixed": Fixed,
    "random": Random,
}


def part_cost(kind: str, config: StackConfig, sizes: Sizes, shape: Shape) -> Cost:
    """What one part of the sum has and does."""
    return COSTS[kind](config, sizes, shape)


def maps_cost(config: StackConfig, sizes: Sizes, tokens: int, outputs: int, used: int) -> Cost:
    """W₁ and W₂ of every head: of all outputs `used` are computed."""
    hidden = linear_cost(config.d_model, sizes.width, tokens, bias=False)
    flops = 2 * tokens * sizes.inside * used
    return hidden + Cost(sizes.inside * outputs, flops, flops)


def dense_cost(config: StackConfig, sizes: Sizes, shape: Shape) -> Cost:
    tokens, keys = shape.batch * shape.tgt_len, sizes.keys(shape)
    if not sizes.released:
        return maps_cost(config, sizes, tokens, sizes.length, keys)
    flops = 2 * tokens * sizes.inside * keys
    return Cost(sizes.width * sizes.length, flops, flops)


def factored_dense_cost(config: StackConfig, sizes: Sizes, shape: Shape) -> Cost:
    tokens, both = shape.batch * shape.tgt_len, sizes.a + sizes.b
    if not sizes.released:
        return maps_cost(config, sizes, tokens, both, both)
    bias, d = config.attention_bias, config.d_model
    return linear_cost(d, sizes.heads * both, tokens, bias=bias)


def factored_random_cost(config: StackConfig, sizes: Sizes, shape: Shape) -> Cost:
    # one product serves the whole batch
    flops = 2 * sizes.heads * shape.tgt_len * sizes.keys(shape) * sizes.rank
    flops = 0 if sizes.released else flops
    return Cost(2 * sizes.heads * sizes.length * sizes.rank, flops, flops)


def random_cost(config: StackConfig, sizes: Sizes, shape: Shape) -> Cost:
    return Cost(sizes.heads * sizes.length**2)


def fixed_cost(config: StackConfig, sizes: Sizes, shape: Shape) -> Cost:
    return Cost(constants=sizes.heads * sizes.length**2)


def vanilla_cost(config: StackConfig, sizes: Sizes, shape: Shape) -> Cost:
    flops = 2 * shape.batch * shape.tgt_len * sizes.keys(shape) * sizes.inside
    return Cost(0, flops, flops)


COSTS: dict[str, Callable[[StackConfig, Sizes, Shape], Cost]] = {
    "dense": dense_cost,
    "factored-dense": factored_dense_cost,
    "factored-random": factored_random_cost,
    "fixed": fixed_cost,
    "random": random_cost,
    "vanilla": vanilla_cost,
}
