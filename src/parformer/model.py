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

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from parformer.blocks.base import Context, Source
from parformer.blocks.linear import Linear
from parformer.blocks.stack import Remembered, Stack
from parformer.blocks.taps import Taps
from parformer.config import ModelConfig
from parformer.costs import cost, refuse_fewer_weights
from parformer.counts.prior import Hints, Prior
from parformer.embedding import IGNORE, Embedding, there_of
from parformer.errors import ConfigError, FolderError, InputError, ParformerError
from parformer.first_weights import initialise
from parformer.head import Head, LabelHead, make_head, pool
from parformer.inputs import all_present, check_inputs, check_state
from parformer.native.decoder import Decoder
from parformer.state import Output, State
from parformer.store import folder
from parformer.store.sparse import without_zeros
from parformer.weights import fill, named_tensors, new_like, place, share_codes

MAX_PARAMETERS = 2**40
"""More than anyone builds: beyond it a size is a slip of the pen, or hostile."""

Step: TypeAlias = tuple[Tensor, Remembered, Tensor | None, Tensor | None]


class Model(Stack):
    """A stack that reads tokens, and says what comes next or what was masked."""

    config: ModelConfig

    def __init__(self, config: ModelConfig) -> None:
        nn.Module.__init__(self)
        self.config = config
        self.embedding = Embedding(config)
        self.source_embedding = Embedding(config.source_words) if config.source_vocab else None
        self.encoder = None if config.source is None else Stack(config.source)
        self.make_blocks(config, {})
        self.head = make_head(config, self.embedding.words)
        self.prior = Prior(config, config.vocab_size) if config.counts or config.recall else None
        dense = config.pooler and config.pool == "dense"
        self.pooler = Linear(config.d_model, config.d_model) if dense else None
        self.pair_head = Linear(config.d_model, 2) if config.pair_head != "none" else None
        self.label_head = LabelHead(config) if config.label_width else None
        self._compiled: Callable[..., Step] | None = None

    def compile(self, *args: Any, **options: Any) -> None:
        """Let torch.compile make training steps faster, from the next one on.

        One graph serves them all: the few steps until a memory is full run as they are, and
        so does everything that needs no gradient. Checks and losses that depend on what the
        numbers are stay outside.
        """
        self._compiled = torch.compile(self._step, *args, **options)

    def forward(  # type: ignore[override]
        self,
        tokens: Tensor,
        state: State | None = None,
        targets: Tensor | None = None,
        *,
        token_types: Tensor | None = None,
        padding: Tensor | None = None,
        source: Tensor | Source | None = None,
        source_padding: Tensor | None = None,
        part: Tensor | None = None,
        last_only: bool = False,
        taps: Taps | None = None,
    ) -> Output:
        """Read tokens after what `state` remembers; give logits, or the loss of `targets`.

        `padding` (batch, time) is true where there is a token. A model with an encoder gets its
        `source` (batch, source) with the first tokens, as tokens or as `encode` read it.
        `last_only` gives the logits of the last token alone, as generation needs them. `part`
        (batch, time) says which part of the training text this is, so that counts leave it out.
        `taps` hear what the blocks do; where a window slides, of all of its tokens.
        """
        check_inputs(self.config, tokens, targets, token_types, padding)
        state = self._begun(state, tokens.shape[0])
        if isinstance(source, Tensor):
            source = self.encode(source, source_padding, taps=taps)
        fresh, window = tokens.shape[1], tokens
        present = all_present(state, tokens, padding)
        known = None if self.prior is None else self.prior(tokens, state.recent_bk, part)
        hints, recent = known or (None, None)
        if self.config.numbered:
            state, tokens, window = self._slide(state, tokens)
        if self._compiled is not None and self.config.positions == "relative":
            self._extend_all(tokens.shape[1] + min(state.position, state.memory))
        # losses belong to the step where their shapes follow from the shapes of the tokens
        counted_n = None
        if targets is not None and self.head is not None and self.head.regular:
            counted_n = self._all_counted(targets, tokens)
        plain = self._compiled is None or taps is not None
        step = self._step if plain else self._fitting_step(state)
        keys = tokens.shape[1] + min(state.position, state.memory)
        seen = None if present is None else present[:, -keys:]
        places = (state.memory, state.position, seen, source)
        context = Context(*places, tokens=tokens, taps=taps, starts_b=state.starts_b)
        there = there_of(self.config, window, present, ragged=state.starts_b is not None)
        x_btd, after, pooled, losses_n = step(
            tokens, state.blocks, context, token_types, counted_n, hints, there
        )
        x_btd = x_btd[:, -fresh:] if tokens.shape[1] > fresh else x_btd
        new = None
        if self.config.causal:
            new = self._after(state, tokens.shape[1], after, (window, present, recent))
        more = self._told(x_btd, pooled)
        if targets is None:
            logits = self._logits(x_btd, hints, last_only=last_only)
            return Output(x_btd, new, logits=logits, **more)
        if losses_n is not None:
            loss, losses_bt = losses_n.mean(), losses_n.view(targets.shape)
        else:
            loss, losses_bt = self._losses(x_btd, targets, hints)
        return Output(x_btd, new, loss=loss, losses=losses_bt, **more)

    def _told(self, x_btd: Tensor, pooled: Tensor | None) -> dict[str, Tensor | None]:
        """What other heads than that of words tell."""
        pairs = None if self.pair_head is None else self.pair_head(pooled)
        labels = None if self.label_head is None else self.label_head(x_btd, pooled)
        return {"pooled": pooled, "pair_logits": pairs, "label_logits": labels}

    def _begun(self, state: State | None, batch: int) -> State:
        """A state that fits, or the one before the first token."""
        if state is not None:
            check_state(self.config, state, batch, training=self.training)
        return self.initial_state(batch) if state is None else state

    def _after(
        self,
        state: State,
        time: int,
        blocks: Remembered,
        more: tuple[Tensor, Tensor | None, Tensor | None],
    ) -> State:
        """What is remembered after a step: blocks, the window, present places, recent tokens."""
        window, present, recent = more
        keep = window if self.config.numbered else None
        if present is not None:
            present = present[:, -state.memory :] if state.memory else None
        extras, position = (keep, present, recent, state.starts_b), state.position + time
        return State(state.batch, self.config, state.memory, position, blocks, *extras)

    def _logits(self, x_btd: Tensor, hints: Hints | None, *, last_only: bool) -> Tensor | None:
        if self.head is None:
            return None
        wanted = (slice(None), slice(-1 if last_only else None, None))
        return self.head.logits(x_btd[wanted], None if hints is None else hints.at(wanted))

    def _fitting_step(self, state: State) -> Callable[..., Step]:
        """The compiled step where its one shape is at hand, else the plain one."""
        assert self._compiled is not None
        in_windows = self.config.positions == "rotary" or self.config.numbered
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
        before: Remembered,
        context: Context,
        token_types: Tensor | None,
        targets_n: Tensor | None,
        hints: Hints | None = None,
        there_bn: Tensor | None = None,
    ) -> Step:
        """The numbers of one step: hidden, what blocks remember, pooled, losses of targets."""
        # nobody but the stack holds on to what goes into it
        x_btd, after = self.run(
            self.embedding(tokens, token_types, context.position, context.padding, there_bn),
            before,
            context,
        )
        pooled = None
        if self.config.pooler:
            pooled = pool(self.config, self.pooler, x_btd, context.padding)
        if self.training and self.config.dropout and self.config.final_dropout:
            x_btd = F.dropout(x_btd, self.config.dropout)
        losses_n = None
        if targets_n is not None:
            assert self.head is not None
            known = None if hints is None else hints.in_a_row()
            losses_n = self.head.losses(x_btd.flatten(0, 1), targets_n, known)
        return x_btd, after, pooled, losses_n

    def encode(
        self, source: Tensor, padding: Tensor | None = None, *, taps: Taps | None = None
    ) -> Source:
        """What an encoder makes of a source (batch, source), to be read from many times."""
        if self.encoder is None:
            raise InputError("this model has no encoder, so it reads no source; leave it out")
        if padding is None and self.config.pad >= 0:
            padding = source != self.config.pad
        check_inputs(self.config.source_words, source, None, None, padding, source=True)
        before = (None,) * len(self.encoder.blocks)
        inner = None if taps is None else taps.at("encoder")
        context = Context(memory=0, padding=padding, tokens=source, taps=inner)
        embedding = self.embedding if self.source_embedding is None else self.source_embedding
        there = there_of(self.config, source, padding)
        x_bsd, _ = self.encoder.run(embedding(source, None, 0, padding, there), before, context)
        return Source(x_bsd, padding)

    def _losses(
        self, x_btd: Tensor, targets_bt: Tensor, hints: Hints | None
    ) -> tuple[Tensor, Tensor]:
        assert self.head is not None
        x_nd, known = x_btd.flatten(0, 1), None if hints is None else hints.in_a_row()
        flat_n = targets_bt.flatten().long()
        counted_n = flat_n != IGNORE
        if torch.compiler.is_compiling() and self.head.regular:
            # a graph has one shape: all places are computed, and some of them weigh nothing
            losses_n = self.head.losses(x_nd, flat_n.clamp(min=0), known) * counted_n
            return losses_n.sum() / counted_n.sum(), losses_n.view(targets_bt.shape)
        if bool(counted_n.all()):
            losses_n = self.head.losses(x_nd, flat_n, known)
            return losses_n.mean(), losses_n.view(targets_bt.shape)
        places_s = counted_n.nonzero()[:, 0]
        if not len(places_s):
            raise InputError(f"every target is {IGNORE}, so no token counts; mask fewer")
        some = None if known is None else known.at(places_s)
        losses_s = self.head.losses(x_nd[places_s], flat_n[places_s], some)
        losses_n = losses_s.new_zeros(flat_n.shape).index_copy(0, places_s, losses_s)
        return losses_s.mean(), losses_n.view(targets_bt.shape)

    def initial_state(  # type: ignore[override]
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
        if self.config.numbered:
            memory = min(memory, self.config.max_len)
        blocks: Remembered = (None,) * len(self.blocks)
        if zeros and memory:
            if self.config.numbered or not self.config.causal:
                raise InputError("zeros=True needs a model with segment memory (transformer-xl)")
            blocks = self.zeros(batch, memory)
        return State(batch, self.config, memory, 0, blocks)

    def _slide(self, state: State, tokens: Tensor) -> tuple[State, Tensor, Tensor]:
        """Past its window, a model that numbers its places drops the oldest tokens and reads again.

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

    def _extend_all(self, count: int) -> None:
        """Have distances at hand for every stack that asks for them in the graph to come."""
        for module in self.modules():
            if isinstance(module, Stack) and not module.inherits:
                module.extend_distances(count)

    def pack(self, rows: int) -> bool:
        """Lay the weights out for inference steps of `rows` tokens (batch × time) each.

        On CPUs with MKL such steps become faster, for twice the weights in memory; other
        steps, and weights that change later, go the plain way. False where it cannot be done.
        """
        done = [m.pack(rows) for m in self.modules() if isinstance(m, Linear | Head)]
        return any(done)

    def native(self, **wanted: Any) -> Decoder:
        """The same model in C++, to write token by token; `wanted` is what `Decoder` takes."""
        return Decoder(self.config, self.embedding, self, self.head, self.prior, **wanted)

    def save(self, path: str | Path, tokenizer: str | None = None, *, sparse: bool = False) -> None:
        """Write the model into a folder: weights, configuration, checksums.

        `tokenizer` is what `Tokenizer.to_json` gives; with it the folder is all that
        generating text needs. `sparse` leaves out zeros where most numbers are.
        """
        weights = {name: tensor.detach() for name, tensor in named_tensors(self).items()}
        weights = without_zeros(weights) if sparse else weights
        folder.write_model(Path(path), weights, self.config.to_dict(), tokenizer)


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
    place(outline, lambda weight: new_like(weight, device, dtype))
    initialise(outline, outline.config, torch.Generator(device).manual_seed(seed))
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
    fill(model, weights, f"the weights in {str(path)!r}", FolderError, device)
    if model.prior is not None and model.prior.table is not None:
        model.prior.readable(model.prior.table)  # damage is found here, not in the first step
    return model.eval()


def reconfigure(model: Model, **changes: Any) -> Model:
    """The same parameters under a configuration with fields replaced that shape no weight.

    Nothing is copied: what later changes a parameter of one model changes the other's.
    """
    again = _outline(model.config.replaced(**changes))
    share_codes(model, again)
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
    fill(outline, weights, "the weights", InputError, "cpu")
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


def count_parameters(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())
