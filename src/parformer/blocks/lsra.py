"""LSRA: some channels attend far, the others convolve near (Lite Transformer, Wu et al. 2020).

The stream's channels are split by their places: to the left those that attend, with queries, keys
and values of their own, to the right those that mix neighbours. Their answers stand side by side
again. `l[attend=0]` is a convolution alone, and `branches=` gives any number of branches.
"""

# b batch, t time, d width, c channels of a branch, k taps

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import cast

import torch
from torch import Tensor, nn

from parformer.blocks.attention import SelfAttention
from parformer.blocks.base import (
    Block,
    Context,
    Cost,
    Shape,
    block,
    linear_cost,
    norm_parameters,
)
from parformer.blocks.convolution import Convolution, Tail, convolution_cost
from parformer.blocks.linear import Linear
from parformer.blocks.memory import InputMemory
from parformer.blocks.places import Places
from parformer.blocks.state import BlockState, GroupState, apart, together
from parformer.errors import ConfigError
from parformer.parts import StackConfig
from parformer.pattern import BlockSpec

TAPS = 15
KINDS = ("attend", "dynamic", "light")
BRANCH = re.compile(r"([a-z]+?)(\d{1,9})(?:h(\d{1,9}))?(?:k(\d{1,9}))?(?:i(\d{1,9}))?")


@dataclass(frozen=True, slots=True)
class Branch:
    """What some of the channels do."""

    kind: str
    channels: int
    heads: int
    taps: int = 1
    gated: bool = False
    inner: int = 0
    """Channels inside of a convolution; 0 means as many as it has."""

    def __str__(self) -> str:
        """As `branches=` gives it."""
        taps = "" if self.kind == "attend" else f"k{self.taps}"
        inner = f"i{self.inner}" if self.inner else ""
        return f"{self.kind}{self.channels}h{self.heads}{taps}{inner}"


@block("l")
class LSRA(Block):
    """Attention for what is far, convolution for what is near, each with a part of the channels."""

    options = {  # noqa: RUF012
        **{"dynamic": bool, "light": bool, "kernel": int, "heads": int, "attend": float},
        **{"glu": str, "branches": str, "leaky": bool},
    }
    training_state = GroupState

    def __init__(self, config: StackConfig, spec: BlockSpec) -> None:
        super().__init__(config)
        self.causal = config.causal
        found = branches_of(config, spec)
        self.sizes = [branch.channels for branch in found]
        self.attends = [branch for branch in found if branch.kind == "attend"]
        leaky = "leaky" in spec.options
        self.branches = nn.ModuleList(make_branch(config, branch, leaky) for branch in found)

    def forward(
        self, x_btd: Tensor, state: BlockState | None, context: Context
    ) -> tuple[Tensor, BlockState | None]:
        read_btd, context = self.read(x_btd), with_own_biases(context)
        seen, after = [], list[BlockState | None]()
        for branch, x_btc, known in self.parts(read_btd, state):
            if isinstance(branch, SelfAttention):
                y_btc, kept = branch.answer(x_btc, known, self.heard(context, len(after)))
            else:
                present_bt = present(context, x_btd.shape[1])
                y_btc, kept = branch(x_btc, cast(Tail | None, known), present_bt)
            seen.append(y_btc)
            after.append(kept)
        y_btd = seen[0] if len(seen) == 1 else torch.cat(seen, dim=-1)
        return self.write(x_btd, y_btd), together(after)

    def heard(self, context: Context, place: int) -> Context:
        """Whoever listens tells several branches that attend apart by their places."""
        if context.taps is None or len(self.attends) < 2:
            return context
        return replace(context, taps=context.taps.at(place))

    def parts(
        self, x_btd: Tensor, state: BlockState | None
    ) -> list[tuple[SelfAttention | Convolution, Tensor, BlockState | None]]:
        """Every branch with its channels and its past."""
        assert state is None or isinstance(state, GroupState)
        before = [None] * len(self.branches) if state is None else state.blocks
        branches = cast(Sequence[SelfAttention | Convolution], self.branches)
        return list(zip(branches, torch.split(x_btd, self.sizes, dim=-1), before, strict=True))

    def remember(
        self, x_btd: Tensor, state: BlockState | None, context: Context
    ) -> BlockState | None:
        if not self.causal:
            return None
        after = list[BlockState | None]()
        with torch.no_grad():
            for branch, x_btc, known in self.parts(self.read(x_btd.detach()), state):
                if isinstance(branch, SelfAttention):
                    after.append(branch.remember(x_btc, known, context))
                else:
                    present_bt = present(context, x_btd.shape[1])
                    after.append(branch.remember(x_btc, cast(Tail | None, known), present_bt))
        return together(after)

    def zeros(self, batch: int, memory: int) -> BlockState | None:
        return together(
            [
                branch.zeros(batch, memory)
                if isinstance(branch, SelfAttention)
                else cast(Convolution, branch).zeros(batch)
                for branch in self.branches
            ]
        )

    def recall(self, tensors: Mapping[str, Tensor]) -> BlockState:
        own = apart(tensors, len(self.branches))
        kinds = [InputMemory if isinstance(b, SelfAttention) else Tail for b in self.branches]
        pairs = zip(kinds, own, strict=True)
        return GroupState(tuple(kind.of(each) if each else None for kind, each in pairs))

    @classmethod
    def cost(cls, config: StackConfig, spec: BlockSpec, shape: Shape) -> Cost:
        found = branches_of(config, spec)
        return sum(
            (branch_cost(config, branch, shape) for branch in found), Cost(norm_parameters(config))
        )


def present(context: Context, time: int) -> Tensor | None:
    """Which places of this step hold a token; None if all do."""
    return None if context.padding is None else context.padding[:, -time:]


def with_own_biases(context: Context) -> Context:
    """Relative attention of fewer channels cannot share the biases of the whole stream's."""
    places = context.places
    if places is None or places.biases is None:
        return context
    # what is made keeps `places` alive, so that no other one can have its number
    own = context.once(("own biases", id(places)), lambda: Places(places.distances))
    return replace(context, places=own)


def make_branch(config: StackConfig, branch: Branch, leaky: bool) -> nn.Module:
    if branch.kind == "attend":
        attention = SelfAttention.make(inside(config, branch), attending(branch))
        attention.norm = nn.Identity()  # the block has one for all channels
        if config.positions == "relative":
            # distances are embedded in the stream's width
            attention.distance = Linear(config.d_model, branch.channels, bias=False)
        return attention
    return Convolution(
        branch.channels,
        branch.heads,
        branch.taps,
        dynamic=branch.kind == "dynamic",
        gated=branch.gated,
        causal=config.causal,
        bias=config.attention_bias,
        dropout=config.dropatt if config.dropkernel < 0 else config.dropkernel,
        leaky=leaky,
        inner=branch.inner,
    )


def branch_cost(config: StackConfig, branch: Branch, shape: Shape) -> Cost:
    if branch.kind != "attend":
        return convolution_cost(
            branch.channels,
            branch.heads,
            branch.taps,
            shape,
            dynamic=branch.kind == "dynamic",
            gated=branch.gated,
            causal=config.causal,
            bias=config.attention_bias,
            inner=branch.inner,
        )
    narrow = inside(config, branch)
    price = SelfAttention.cost(narrow, attending(branch), shape) + Cost(-norm_parameters(narrow))
    if config.positions == "relative":
        rows = shape.keys if config.causal else shape.keys + shape.tgt_len - 1
        wider = config.d_model - branch.channels
        more = linear_cost(wider, branch.channels, rows, bias=False)
        price += replace(more, flops_cached=0) if config.causal else more
    return price


def inside(config: StackConfig, branch: Branch) -> StackConfig:
    """What attention with some of the channels is told; it neither norms nor adds up."""
    bias = "per-layer" if config.positions == "relative" else config.position_bias
    return StackConfig.stack(  # plain, inside of a bottleneck too: who is fed there is s
        config,
        d_model=branch.channels,
        n_head=branch.heads,
        d_head=0,
        n_kv_head=0,
        norm="post",
        position_bias=bias,
        final_norm=False,
    )


def attending(branch: Branch) -> BlockSpec:
    return BlockSpec("s", {"heads": branch.heads})


# What the options mean


def branches_of(config: StackConfig, spec: BlockSpec) -> list[Branch]:
    """The branches that a block has, from the left, once they fit."""
    options = spec.options
    found = listed(config, spec) if "branches" in options else usual(config, spec)
    for branch in found:
        check_branch(config, spec, branch)
    if (together := sum(branch.channels for branch in found)) != config.d_model:
        raise ConfigError(
            f"the branches of {str(spec)!r} have {together} channels together, the stream "
            f"{config.d_model}; they must agree"
        )
    return found


def usual(config: StackConfig, spec: BlockSpec) -> list[Branch]:
    """Some channels attend, the others convolve."""
    options, width = spec.options, config.d_model
    if "dynamic" in options and "light" in options:
        raise ConfigError(f"{str(spec)!r} is dynamic and light; leave out one of them")
    kind = "light" if "light" in options else "dynamic"
    share = float(options.get("attend", 0.5))
    if not 0 <= share <= 1:
        raise ConfigError(f"attend in {str(spec)!r} is a share from 0 to 1, got {share:g}")
    attend = round(share * width)
    if abs(attend - share * width) > 1e-6 * width:
        raise ConfigError(
            f"{str(spec)!r} cannot give a share of {share:g} of {width} channels to attention; "
            "change attend= or d_model so that it is a whole number"
        )
    heads = int(options.get("heads", config.n_head))
    gated = is_gated(spec, kind)
    near = Branch(kind, width - attend, heads, int(options.get("kernel", TAPS)), gated)
    return [b for b in (Branch("attend", attend, heads), near) if b.channels]


def listed(config: StackConfig, spec: BlockSpec) -> list[Branch]:
    """As `branches=` gives them, such as attend96h4+dynamic48h4k7+light48k31."""
    options = spec.options
    for name in ("attend", "dynamic", "light"):
        if name in options:
            raise ConfigError(f"branches in {str(spec)!r} says it all; leave out {name}")
    found = []
    for word in str(options["branches"]).split("+"):
        read = BRANCH.fullmatch(word)
        if read is None or read[1] not in KINDS:
            raise ConfigError(
                f"branch {word!r} in {str(spec)!r} is none; write attend, dynamic or light, its "
                "channels, and what differs of heads, taps and inner channels, such as "
                "dynamic48h4k7 or dynamic48h4k7i32"
            )
        heads = int(read[3] or options.get("heads", config.n_head))
        taps = 1
        if read[1] != "attend":
            taps = int(read[4] or options.get("kernel", TAPS))
        elif read[4] or read[5]:
            raise ConfigError(
                f"branch {word!r} in {str(spec)!r} attends, which has no taps (k) and no channels "
                "inside (i)"
            )
        gated, inner = is_gated(spec, read[1]), int(read[5] or 0)
        found.append(Branch(read[1], int(read[2]), heads, taps, gated, inner))
    return found


def is_gated(spec: BlockSpec, kind: str) -> bool:
    """Dynamic convolutions are unless told otherwise, lightweight ones only if told."""
    said = str(spec.options.get("glu", "on" if kind == "dynamic" else "off"))
    if said not in ("on", "off"):
        raise ConfigError(f"glu in {str(spec)!r} must be on or off, got {said!r}")
    return kind != "attend" and said == "on"


def check_branch(config: StackConfig, spec: BlockSpec, branch: Branch) -> None:
    """Refuse channels that heads do not divide, and kernels without a middle."""
    kind, channels, heads = branch.kind, branch.inner or branch.channels, branch.heads
    if not branch.channels or not heads or not branch.taps:
        raise ConfigError(f"a branch of {str(spec)!r} has 0 channels, heads or taps; give it 1")
    if channels % heads:
        raise ConfigError(
            f"{heads} heads do not divide the {channels} channels that {verb(kind)} in "
            f"{str(spec)!r}; set heads= to a divisor of {channels}"
        )
    if kind == "attend":
        if config.positions == "rotary" and channels // heads % 2:
            raise ConfigError(
                f"rotary positions need an even head width, got {channels // heads} in "
                f"{str(spec)!r}; set heads="
            )
        if config.positions == "relative" and channels % 2:
            raise ConfigError(
                f"relative positions need an even number of channels that attend, got {channels} "
                f"in {str(spec)!r}; change attend= or d_model"
            )
    elif branch.taps % 2 == 0 and not config.causal:
        raise ConfigError(
            f"a kernel of {branch.taps} taps in {str(spec)!r} has no middle, which a convolution "
            f"that sees both sides needs; take {branch.taps - 1} or {branch.taps + 1}"
        )


def verb(kind: str) -> str:
    return "attend" if kind == "attend" else "convolve"
