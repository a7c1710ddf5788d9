"""Embedding, stack of blocks, head: one model for every family and pattern.

>>> import parformer as pf, torch
>>> model = pf.build(pf.preset("pocket", pattern="(sfff)x2 (f)x4"))
>>> tokens = torch.randint(256, (1, 16))
>>> out = model(tokens)
>>> out.logits.shape
torch.Size([1, 16, 256])
>>> model(tokens, state=out.state).state.position
32
"""

# b batch, t time, d width, v vocabulary, n = b × t

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, TypeVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from parformer.blocks.base import Block, BlockState, Context, Linear, find_block, make_norm
from parformer.blocks.sru import Recurrent
from parformer.config import ModelConfig
from parformer.costs import cost
from parformer.embedding import IGNORE, Embedding, Head, check_tokens, make_head
from parformer.errors import ConfigError, FolderError, InputError, ParformerError
from parformer.store import folder

MAX_PARAMETERS = 2**40
"""More than anyone builds: beyond it a size is a slip of the pen, or hostile."""

DROPPED_AT_THE_END = ("transformer-xl", "sru")
"""Families whose authors drop some of what the head reads, too."""

WEIGHT_TYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
"""What a weight may be kept as."""


@dataclass(frozen=True, slots=True, eq=False)
class State:
    """What a model remembers of the text so far. Give it back with the tokens that follow."""

    batch: int
    config: ModelConfig
    """The model that it belongs to."""
    memory: int
    """Tokens that the blocks may keep."""
    position: int
    """Tokens read so far, within the window where positions are learned."""
    blocks: tuple[BlockState | None, ...]
    window_bt: Tensor | None = None
    """The tokens themselves, where learned positions may have to read them again."""

    @property
    def bytes(self) -> int:
        """Bytes of everything remembered in the blocks."""
        return sum(block.bytes for block in self.blocks if block is not None)


@dataclass(frozen=True, slots=True, eq=False)
class Output:
    """What a step gives."""

    hidden: Tensor
    """(batch, time, width) before the head."""
    state: State | None
    logits: Tensor | None = None
    """(batch, time, vocabulary), when no targets were given."""
    loss: Tensor | None = None
    """Mean negative log-probability of the targets that count."""
    losses: Tensor | None = None
    """(batch, time), 0 where a target does not count."""
    pooled: Tensor | None = None
    """(batch, width), for models with a pooler."""


Step: TypeAlias = tuple[Tensor, tuple[BlockState | None, ...], Tensor | None, Tensor | None]


class Model(nn.Module):
    """A language model that follows its pattern."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = Embedding(config)
        self.blocks = nn.ModuleList(
            find_block(spec)(config, spec.options)  # type: ignore[call-arg]
            for spec in config.pattern
        )
        if config.family == "sru":
            # its authors drop what the last block gives only once, on the way to the head
            cast(Block, self.blocks[-1]).dropout = 0.0
        self.final_norm = make_norm(config) if config.final_norm else None
        self.head = make_head(config, self.embedding.words)
        self.pooler = nn.Linear(config.d_model, config.d_model) if config.pooler else None
        self.content_bias: nn.Parameter | None = None
        self.position_bias: nn.Parameter | None = None
        if config.positions == "relative" and config.position_bias == "shared":
            inside = config.n_head * config.head_width(config.n_head)
            self.content_bias = nn.Parameter(torch.empty(inside))
            self.position_bias = nn.Parameter(torch.empty(inside))
        self._sinusoids: Tensor | None = None
        self._compiled: Callable[..., Step] | None = None

    def compile(self, *args: Any, **options: Any) -> None:
        """Let torch.compile make training steps faster, from the next one on.

        One graph serves them all: the few steps until a memory is full run as they are, and
        so does everything that needs no gradient. Checks and losses that depend on what the
        numbers are stay outside.
        """
        self._compiled = torch.compile(self._step, *args, **options)

    def forward(
        self,
        tokens: Tensor,
        state: State | None = None,
        targets: Tensor | None = None,
        *,
        token_types: Tensor | None = None,
        padding: Tensor | None = None,
        last_only: bool = False,
    ) -> Output:
        """Read tokens after what `state` remembers; give logits, or the loss of `targets`.

        `padding` (batch, time) is true where there is a token, for models that see both
        sides. `last_only` gives the logits of the last token alone, as generation needs them.
        """
        self._check_inputs(tokens, state, targets, token_types, padding)
        if state is None:
            state = self.initial_state(tokens.shape[0])
        fresh = tokens.shape[1]
        window = tokens
        if self.config.positions == "learned":
            state, tokens, window = self._slide(state, tokens)
        if self._compiled is not None and self.config.positions == "relative":
            self._extend_sinusoids(tokens.shape[1] + min(state.position, state.memory))
        # losses belong to the step where their shapes follow from the shapes of the tokens
        counted_n = None
        if targets is not None and self.head is not None and self.head.regular:
            counted_n = self._all_counted(targets, tokens)
        step = self._step if self._compiled is None else self._fitting_step(state)
        x_btd, after, pooled, losses_n = step(
            tokens, state.blocks, state.memory, state.position, token_types, padding, counted_n
        )
        if tokens.shape[1] > fresh:
            x_btd = x_btd[:, -fresh:]
        new = None
        if self.config.causal:
            keep = window if self.config.positions == "learned" else None
            position = state.position + tokens.shape[1]
            new = State(state.batch, self.config, state.memory, position, after, keep)
        if losses_n is not None and targets is not None:
            losses_bt = losses_n.view(targets.shape)
            return Output(x_btd, new, loss=losses_n.mean(), losses=losses_bt, pooled=pooled)
        if targets is None:
            logits = None
            if self.head is not None:
                logits = self.head.logits(x_btd[:, -1:] if last_only else x_btd)
            return Output(x_btd, new, logits=logits, pooled=pooled)
        loss, losses_bt = self._losses(x_btd, targets)
        return Output(x_btd, new, loss=loss, losses=losses_bt, pooled=pooled)

    def _fitting_step(self, state: State) -> Callable[..., Step]:
        """The compiled step where its one shape is at hand, else the plain one."""
        assert self._compiled is not None
        in_windows = self.config.positions in ("learned", "rotary")
        usual = state.position == 0 if in_windows else state.position >= state.memory
        return self._compiled if usual and self.training and torch.is_grad_enabled() else self._step

    def _all_counted(self, targets_bt: Tensor, tokens: Tensor) -> Tensor | None:
        """All targets in a row, if each of them counts and has its token in this step."""
        if targets_bt.shape != tokens.shape or torch.compiler.is_compiling():
            return None
        flat_n = targets_bt.flatten().long()
        return flat_n if bool((flat_n != IGNORE).all()) else None

    def _step(
        self,
        tokens: Tensor,
        before: tuple[BlockState | None, ...],
        memory: int,
        position: int,
        token_types: Tensor | None,
        padding: Tensor | None,
        targets_n: Tensor | None,
    ) -> Step:
        """The numbers of one step: hidden, what blocks remember, pooled, losses of targets."""
        x_btd, after = self._run(tokens, before, memory, position, token_types, padding)
        pooled = None if self.pooler is None else torch.tanh(self.pooler(x_btd[:, 0]))
        if self.training and self.config.dropout and self.config.family in DROPPED_AT_THE_END:
            x_btd = F.dropout(x_btd, self.config.dropout)
        losses_n = None
        if targets_n is not None:
            assert self.head is not None
            losses_n = self.head.losses(x_btd.flatten(0, 1), targets_n)
        return x_btd, after, pooled, losses_n

    def _run(
        self,
        tokens: Tensor,
        before: tuple[BlockState | None, ...],
        memory: int,
        position: int,
        token_types: Tensor | None,
        padding: Tensor | None,
    ) -> tuple[Tensor, tuple[BlockState | None, ...]]:
        x_btd = self.embedding(tokens, token_types, position)
        shared = self.content_bias is not None and self.position_bias is not None
        context = Context(
            self.config,
            memory,
            position,
            cast("tuple[Tensor, Tensor]", (self.content_bias, self.position_bias))
            if shared
            else None,
            padding,
            lambda count: self._distance_embeddings(count, context),
        )
        after = []
        for block, remembered in zip(self.blocks, before, strict=True):
            x_btd, remembered = block(x_btd, remembered, context)
            after.append(remembered)
        if self.final_norm is not None:
            x_btd = self.final_norm(x_btd)
        return x_btd, tuple(after)

    def _losses(self, x_btd: Tensor, targets_bt: Tensor) -> tuple[Tensor, Tensor]:
        assert self.head is not None
        flat_n = targets_bt.flatten().long()
        counted_n = flat_n != IGNORE
        if torch.compiler.is_compiling() and self.head.regular:
            # a graph has one shape: all places are computed, and some of them weigh nothing
            losses_n = self.head.losses(x_btd.flatten(0, 1), flat_n.clamp(min=0)) * counted_n
            return losses_n.sum() / counted_n.sum(), losses_n.view(targets_bt.shape)
        if bool(counted_n.all()):
            losses_n = self.head.losses(x_btd.flatten(0, 1), flat_n)
            return losses_n.mean(), losses_n.view(targets_bt.shape)
        places_s = counted_n.nonzero()[:, 0]
        if not len(places_s):
            raise InputError(f"every target is {IGNORE}, so no token counts; mask fewer")
        losses_s = self.head.losses(x_btd.flatten(0, 1)[places_s], flat_n[places_s])
        losses_n = losses_s.new_zeros(flat_n.shape).index_copy(0, places_s, losses_s)
        return losses_s.mean(), losses_n.view(targets_bt.shape)

    def initial_state(
        self, batch: int = 1, memory: int | None = None, *, zeros: bool = False
    ) -> State:
        """The state before the first token: an empty memory, or one full of zeros.

        The authors of Transformer-XL start from an empty memory, Hugging Face's port from
        zeros, which attention does see.
        """
        if batch < 1:
            raise InputError(f"batch must be at least 1, got {batch}")
        if memory is None:
            memory = self.config.memory
        if memory < 0:
            raise InputError(f"memory must not be negative, got {memory}")
        if self.config.positions == "learned":
            memory = min(memory, self.config.max_len)
        blocks: tuple[BlockState | None, ...] = (None,) * len(self.blocks)
        if zeros and memory:
            if self.config.positions == "learned" or not self.config.causal:
                raise InputError("zeros=True needs a model with segment memory (transformer-xl)")
            blocks = tuple(cast(Block, block).zeros(batch, memory) for block in self.blocks)
        return State(batch, self.config, memory, 0, blocks)

    def _slide(self, state: State, tokens: Tensor) -> tuple[State, Tensor, Tensor]:
        """Past its window, a model with learned positions drops the oldest tokens and reads again.

        Gives the state to start from, the tokens to run, and all tokens of the window.
        """
        limit, past = self.config.max_len, state.window_bt
        if tokens.shape[1] > limit:
            raise InputError(
                f"{tokens.shape[1]} tokens exceed the window of {limit}; "
                "give them in pieces and carry the state"
            )
        if past is None:
            return state, tokens, tokens
        window = torch.cat((past, tokens), dim=1)
        if window.shape[1] <= limit:
            return state, tokens, window
        window = window[:, -limit:]
        return self.initial_state(state.batch, state.memory), window, window

    def _distance_embeddings(self, count: int, context: Context) -> Tensor:
        """Sinusoids of the distances count−1 … 0, with one dropout mask per step."""
        table: Tensor = context.once(("sinusoids", count), lambda: self._sinusoid_table(count))
        return table

    def _sinusoid_table(self, count: int) -> Tensor:
        if self._sinusoids is None or self._sinusoids.shape[0] < count:
            self._extend_sinusoids(count)
        known = cast(Tensor, self._sinusoids)
        table = known[known.shape[0] - count :].to(self.embedding.words.tables[0].dtype)
        if self.training and self.config.dropout:
            return F.dropout(table, self.config.dropout)
        return table

    def _extend_sinusoids(self, count: int) -> None:
        """Have as many at hand; outside of a graph, where what a module keeps may change."""
        device = self.embedding.words.tables[0].device
        known = self._sinusoids
        if known is None or known.shape[0] < count or known.device != device:
            with torch.inference_mode(False):  # training may need them after an evaluation
                known = sinusoids(max(count, 64), self.config.d_model, self.config.clamp_len)
                self._sinusoids = known.to(device)

    def _check_inputs(
        self,
        tokens: Tensor,
        state: State | None,
        targets: Tensor | None,
        token_types: Tensor | None,
        padding: Tensor | None,
    ) -> None:
        config = self.config
        check_tokens(tokens, config.vocab_size, "tokens")
        if targets is not None:
            if targets.shape != tokens.shape:
                raise InputError(
                    f"targets have shape {tuple(targets.shape)}, tokens {tuple(tokens.shape)}; "
                    "they must agree"
                )
            if self.head is None:
                raise InputError("this model has no head; build it with head='lm' or 'masked'")
            check_tokens(targets.masked_fill(targets == IGNORE, 0), config.vocab_size, "targets")
        if token_types is not None:
            if not config.token_types:
                raise InputError("this model has no token types; set token_types=2 to build them")
            check_tokens(token_types, config.token_types, "token_types")
            if token_types.shape != tokens.shape:
                raise InputError(
                    f"token_types have shape {tuple(token_types.shape)}, tokens "
                    f"{tuple(tokens.shape)}; they must agree"
                )
        if padding is not None:
            if config.causal:
                raise InputError(
                    f"padding of shape {tuple(padding.shape)} is for models that see both sides; "
                    "this one is causal, so put what does not count last and leave padding out"
                )
            if padding.shape != tokens.shape or padding.dtype != torch.bool:
                raise InputError(
                    f"padding must be torch.bool with the shape of tokens {tuple(tokens.shape)}, "
                    f"got {padding.dtype} of shape {tuple(padding.shape)}"
                )
        if state is not None:
            self._check_state(state, tokens.shape[0])

    def _check_state(self, state: State, batch: int) -> None:
        if not self.config.causal:
            raise InputError("a model that sees both sides carries no state; leave it out")
        if state.batch != batch:
            raise InputError(
                f"the state belongs to a batch of {state.batch}, the tokens to one of {batch}; "
                "start with initial_state or use the same batch"
            )
        if state.config is not self.config and state.config != self.config:
            raise InputError(
                f"the state belongs to another model, {state.config.family} "
                f"{str(state.config.pattern)!r} of width {state.config.d_model}, this one is "
                f"{self.config.family} {str(self.config.pattern)!r} of width "
                f"{self.config.d_model}; start with initial_state"
            )
        if self.training and any(block and not block.trainable for block in state.blocks):
            raise InputError(
                "this state was made for inference; training starts from initial_state "
                "or goes on with a state of its own"
            )

    def pack(self, rows: int) -> bool:
        """Lay the weights out for inference steps of `rows` tokens (batch × time) each.

        On CPUs with MKL such steps become faster, for twice the weights in memory; other
        steps, and weights that change later, go the plain way. False where it cannot be done.
        """
        done = [m.pack(rows) for m in self.modules() if isinstance(m, Linear | Head)]
        return any(done)

    def save(self, path: str | Path, tokenizer: str | None = None) -> None:
        """Write the model into a folder: weights, configuration, checksums.

        `tokenizer` is what `Tokenizer.to_json` gives; with it the folder is all that
        generating text needs.
        """
        weights = {name: p.detach() for name, p in self.named_parameters()}
        folder.write_model(Path(path), weights, self.config.to_dict(), tokenizer)


def sinusoids(count: int, width: int, clamp_len: int) -> Tensor:
    """Sines, then cosines, of the distances count−1 … 0 at falling rates."""
    distance_n = torch.arange(count - 1, -1, -1.0)
    if clamp_len >= 0:
        distance_n = distance_n.clamp(max=clamp_len)
    rate_k = 1 / (10_000 ** (torch.arange(0.0, width, 2.0) / width))
    angle_nk = torch.outer(distance_n, rate_k)
    return torch.cat((angle_nk.sin(), angle_nk.cos()), dim=-1)


def build(
    config: ModelConfig,
    *,
    seed: int = 0,
    device: str | torch.device = "cpu",
    dtype: torch.dtype = torch.float32,
) -> Model:
    """A new model with random weights, in evaluation mode; the same seed gives the same weights."""
    return realise(_outline(config), seed=seed, device=device, dtype=dtype)


M = TypeVar("M", bound=Model)
N = TypeVar("N", bound=nn.Module)


def realise(
    outline: M,
    *,
    seed: int = 0,
    device: str | torch.device = "cpu",
    dtype: torch.dtype = torch.float32,
) -> M:
    """Give random weights to a model that was made on the device `meta`."""
    _place(outline, lambda weight: torch.empty_like(weight, device=device, dtype=dtype))
    initialise(outline, torch.Generator(device).manual_seed(seed))
    return outline.eval()


def load(path: str | Path, *, device: str | torch.device = "cpu", **changes: Any) -> Model:
    """The model that `Model.save` wrote; `changes` may replace fields that shape no weight."""
    values, weights = folder.read_model(Path(path))
    try:
        config = ModelConfig.from_dict(values)
        refuse_fewer_weights(config, weights)
        model = _outline(config)
    except ParformerError as error:
        raise FolderError(f"{str(path)!r} has a broken config.json: {error}") from None
    if changes:
        model = _outline(config.replaced(**changes))
    _fill(model, weights, f"the weights in {str(path)!r}", FolderError, device)
    return model.eval()


def refuse_fewer_weights(config: ModelConfig, weights: Mapping[str, Tensor]) -> None:
    """Refuse a long pattern that these weights cannot be of, before its blocks are made."""
    wanted = cost(config, tgt_len=1, mem_len=0).parameters
    given = sum(weight.numel() for weight in weights.values())
    if len(weights) < len(config.pattern) and given != wanted:
        raise ConfigError(
            f"{len(config.pattern):,} blocks have {wanted:,} parameters, the weights {given:,}"
        )


def reconfigure(model: Model, **changes: Any) -> Model:
    """The same parameters under a configuration with fields replaced that shape no weight.

    Nothing is copied: what later changes a parameter of one model changes the other's.
    """
    again = _outline(model.config.replaced(**changes))
    given, wanted = dict(model.named_parameters()), dict(again.named_parameters())
    for name in [*wanted, *given]:
        if name not in wanted or name not in given or wanted[name].shape != given[name].shape:
            raise ConfigError(
                f"{', '.join(f'{n}={v!r}' for n, v in changes.items())} would change the shape of "
                f"{name!r}; leave it as it is or build another model"
            )
    names = {outline: name for name, outline in wanted.items()}
    for module in again.modules():
        for name, outline in module.named_parameters(recurse=False, remove_duplicate=False):
            setattr(module, name, given[names[outline]])
    return again.eval()


def build_from(config: ModelConfig, weights: Mapping[str, Tensor]) -> Model:
    """A model with these weights, by the names that `Model.named_parameters` gives."""
    return refill(_outline(config), weights)


def refill(outline: N, weights: Mapping[str, Tensor]) -> N:
    """Give these weights to a module that was made on the device `meta`."""
    _fill(outline, weights, "the weights", InputError, "cpu")
    return outline.eval()


def _outline(config: ModelConfig) -> Model:
    """A model whose weights have shapes, but neither a place nor values."""
    parameters = cost(config, tgt_len=1, mem_len=0).parameters
    if parameters > MAX_PARAMETERS:
        raise ConfigError(
            f"{parameters:,} parameters are more than {MAX_PARAMETERS:,}; lower a width"
        )
    with torch.device("meta"):
        return Model(config)


def _place(model: nn.Module, make: Callable[[nn.Parameter], Tensor]) -> None:
    """Give the weights of an outline their place; shared ones stay shared."""
    made: dict[nn.Parameter, nn.Parameter] = {}
    for module in model.modules():
        for name, outline in module.named_parameters(recurse=False, remove_duplicate=False):
            if outline not in made:
                made[outline] = nn.Parameter(make(outline))
            setattr(module, name, made[outline])


def _fill(
    model: nn.Module,
    weights: Mapping[str, Tensor],
    what: str,
    refusal: type[ParformerError],
    device: str | torch.device,
) -> None:
    """Copy weights by name into an outline, once every one is there and fits."""
    wanted = dict(model.named_parameters())
    for name in sorted(wanted.keys() ^ weights.keys()):
        lost = "lack" if name in wanted else "have a surplus"
        raise refusal(f"{what} {lost} {name!r}; they belong to another configuration")
    for name, outline in wanted.items():
        given = weights[name]
        if outline.shape != given.shape:
            raise refusal(
                f"{what} hold {name!r} of shape {tuple(given.shape)}, the "
                f"configuration says {tuple(outline.shape)}"
            )
        if given.dtype not in WEIGHT_TYPES:
            known = ", ".join(map(str, WEIGHT_TYPES))
            raise refusal(f"{what} hold {name!r} as {given.dtype}; known: {known}")
    names = {outline: name for name, outline in wanted.items()}
    kind = torch.contiguous_format
    _place(model, lambda o: weights[names[o]].to(device, copy=True, memory_format=kind))


@torch.no_grad()
def initialise(model: Model, generator: torch.Generator) -> None:
    """First weights, as each family's authors draw them, or scaled to each matrix's inputs."""
    config = model.config
    drawn: set[nn.Parameter] = set()
    for module in model.modules():
        if isinstance(module, Recurrent):
            drawn |= module.draw(generator)
    draw = draw_scaled if config.first_weights == "scaled" else draw_as_family
    for name, parameter in model.named_parameters():
        if parameter in drawn:
            continue
        if name.split(".")[-1] in ("bias", "cluster_bias"):
            parameter.zero_()
        else:
            draw(name, parameter, config, generator)


def draw_as_family(
    name: str, parameter: nn.Parameter, config: ModelConfig, generator: torch.Generator
) -> None:
    """A weight that is no bias, as the family's authors draw it."""
    inside = name.startswith("blocks.")
    if "norm" in name and config.family == "transformer-xl":
        parameter.normal_(1.0, config.init_std, generator=generator)
    elif "norm" in name:
        parameter.fill_(1.0)
    elif config.family == "sru" and not inside:
        if "projection" in name:
            nn.init.xavier_uniform_(parameter, generator=generator)
        else:
            reach = math.sqrt(3 / config.d_model)
            parameter.uniform_(-reach, reach, generator=generator)
    elif "projection" in name:
        parameter.normal_(0.0, config.projection_std, generator=generator)
    elif inside and name.endswith("out.weight") and config.family == "gpt2":
        # GPT-2 lets the sum of many residual blocks start no larger than that of one.
        spread = config.init_std / math.sqrt(len(config.pattern))
        parameter.normal_(0.0, spread, generator=generator)
    else:
        parameter.normal_(0.0, config.init_std, generator=generator)


def draw_scaled(
    name: str, parameter: nn.Parameter, config: ModelConfig, generator: torch.Generator
) -> None:
    """A weight that is no bias, such that what goes through it keeps its size.

    What blocks write begins at zero: the stream of a deep stack is that of a shallow one then, and
    no rate has to be small for its depth. Tables keep `init_std`, as heads share them.
    """
    inside = name.startswith("blocks.")
    if "norm" in name:
        parameter.fill_(1.0)
    elif parameter.dim() < 2 or (inside and name.endswith("out.weight")):
        parameter.zero_()
    elif name == "embedding.positions" and parameter.shape[1] % 2 == 0:
        # neighbours begin alike, so that attention soon finds the token before
        count, width = parameter.shape
        waves = sinusoids(count, width, clamp_len=-1).flip(0)
        parameter.copy_(math.sqrt(2) * config.init_std * waves)
    elif inside or "projection" in name:
        spread = 1 / math.sqrt(parameter.shape[1])
        parameter.normal_(0.0, spread, generator=generator)
    else:
        parameter.normal_(0.0, config.init_std, generator=generator)


def count_parameters(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())
