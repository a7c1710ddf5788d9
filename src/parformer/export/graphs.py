"""Which graph does a model become, and by which names does a runtime find its state?

A decoder's graph reads tokens, their places, which places hold a token, and the past, and gives
logits and the past to go on with. State has the names by which ONNX Runtime GenAI finds it:
`past_key_values.{i}.key`, `.value`, `.conv_state`, `.recurrent_state` come in, `present.{i}.…` go
out; i is the block's number in the order in which blocks run.
"""

# b batch, t time, p past, n = p + t keys, s source, d width, v vocabulary

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from parformer.blocks.base import Context, Source
from parformer.blocks.cross_attention import CrossAttention
from parformer.blocks.groups import placed
from parformer.blocks.ngrams import NOTHING
from parformer.blocks.sru_attention import SRUAttention
from parformer.counts.prior import Hints
from parformer.embedding import there_of
from parformer.head import pool
from parformer.model import Model
from parformer.records import Record

UNLIMITED = 2**40
"""A graph forgets nothing; whoever runs it cuts the past where the model would."""
LEAVES = {
    "kv_bgmk": ("key", "value"),
    "cell_bd": ("recurrent_state",),
    "inputs_bkc": ("conv_state",),
    "tokens_bk": ("recent_tokens",),
    "kv_bgsk": ("encoder.key", "encoder.value"),
    "source_kv_bgsk": ("encoder.key", "encoder.value"),
}
"""What a part of a block's state is called outside."""
MASKS = ("present_bs", "source_present_bs")
"""Which places of a source hold a token: one input for all blocks."""
HINTS = ("counted", "expected", "length")


@dataclass(frozen=True, slots=True)
class Slot(Record):
    """A tensor of the state."""

    name: str
    """Behind `past_key_values.` or `present.`."""
    shape: tuple[int, ...]
    """Behind the batch; −1 where it grows."""
    fill: int
    """What it holds before the first token."""
    whole: bool
    """Whether it holds tokens rather than numbers with fractions."""

    @property
    def grows(self) -> bool:
        return -1 in self.shape


class Layout:
    """How a model's state is taken apart and put together again."""

    def __init__(self, model: Model) -> None:
        """Looks at the state after two tokens."""
        tokens = torch.zeros(1, 2, dtype=torch.long)
        source = None
        if model.encoder is not None:
            source = model.encode(tokens, torch.ones(1, 2, dtype=torch.bool))
        with torch.no_grad():
            state = model(tokens, model.initial_state(1, UNLIMITED), source=source).state
        assert state is not None
        found, self.tree = pytree.tree_flatten_with_path(state.blocks)
        places = [place for place, _, _ in placed(model)]
        self.parts: list[tuple[str, ...]] = []
        """The slots that make up each leaf; none for a mask."""
        self.slots: list[Slot] = []
        self.empty = [leaf is None for _, leaf in found]
        for path, leaf in found:
            keys = [str(getattr(key, "idx", getattr(key, "key", ""))) for key in path]
            if leaf is None or keys[-1] in MASKS:
                self.parts.append(())
                continue
            number = next(n for n, place in enumerate(places) if own(keys, place))
            self.add(number, keys[-1], leaf)

    def add(self, number: int, leaf: str, tensor: Tensor) -> None:
        words = LEAVES[leaf]
        if len(words) == 2 and tensor.shape[1] % 2:
            words = words[:1]  # values without keys
        taken = {slot.name for slot in self.slots}
        names = []
        for word in words:
            name, more = f"{number}.{word}", 2
            while name in taken:  # a second branch of the same block
                name, more = f"{number}.{word}.{more}", more + 1
            names.append(name)
        shape = list(tensor.shape[1:])
        if leaf.endswith(("kv_bgmk", "kv_bgsk")):
            shape = [shape[0] // len(words), -1, shape[2]]
        whole = not tensor.is_floating_point()
        for name in names:
            self.slots.append(Slot(name, tuple(shape), NOTHING if whole else 0, whole))
        self.parts.append(tuple(names))

    def together(self, past: Sequence[Tensor], mask: Tensor | None) -> Any:
        """The blocks' states made of the slots' tensors."""
        known = dict(zip((slot.name for slot in self.slots), past, strict=True))
        leaves: list[Tensor | None] = []
        for names, empty in zip(self.parts, self.empty, strict=True):
            if empty:
                leaves.append(None)
            elif not names:
                leaves.append(mask)
            elif len(names) == 1:
                leaves.append(known[names[0]])
            else:
                leaves.append(torch.cat([known[name] for name in names], dim=1))
        return pytree.tree_unflatten(leaves, self.tree)

    def apart(self, blocks: Any) -> list[Tensor]:
        """The slots' tensors of the blocks' states."""
        leaves = pytree.tree_leaves(blocks, is_leaf=lambda leaf: leaf is None)
        found: list[Tensor] = []
        for names, leaf in zip(self.parts, leaves, strict=True):
            if names:
                found += leaf.chunk(len(names), dim=1) if len(names) > 1 else [leaf]
        return found

    def start(self, batch: int, past: int = 0) -> list[Tensor]:
        """The tensors before the first token, or with room for some."""
        return [
            torch.full(
                (batch, *(past if size < 0 else size for size in slot.shape)),
                slot.fill,
                dtype=torch.long if slot.whole else torch.float32,
            )
            for slot in self.slots
        ]


def own(keys: list[str], place: str) -> bool:
    """Whether a leaf belongs to the block at a place."""
    parts = place.split(".")
    return keys[: len(parts)] == parts


class Decoder(nn.Module):
    """A step of a causal model."""

    def __init__(self, model: Model, layout: Layout) -> None:
        super().__init__()
        self.model, self.layout = model, layout

    def forward(
        self,
        input_ids: Tensor,
        position_ids: Tensor,
        attention_mask: Tensor,
        past: list[Tensor],
        hints: list[Tensor],
        encoder_attention_mask: Tensor | None = None,
    ) -> tuple[Tensor, list[Tensor]]:
        model = self.model
        present_bn = attention_mask > 0
        before = attention_mask.shape[1] - input_ids.shape[1]
        mask = None if encoder_attention_mask is None else encoder_attention_mask > 0
        context = Context(
            UNLIMITED,
            before,
            present_bn,
            tokens=input_ids,
            starts_b=before - position_ids[:, 0],
        )
        there = present_bn if model.config.numbered else None
        x_btd, after = model.run(
            model.embedding(input_ids, None, before, present_bn, there),
            self.layout.together(past, mask),
            context,
        )
        known = Hints(*hints) if hints else None
        assert model.head is not None
        return model.head.logits(x_btd, known), self.layout.apart(after)


class Encoder(nn.Module):
    """What a translator makes of a source: keys and values for all that look at it."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> list[Tensor]:
        source = self.encoded(input_ids, attention_mask > 0)
        found: list[Tensor] = []
        for _, _, block in placed(self.model):
            if isinstance(block, CrossAttention):
                kv_bgsk = block._heads(block.key_value(source.vectors_bsd))
            elif isinstance(block, SRUAttention) and block.reads_source:
                kept = block._source_keys(None, Context(memory=0, source=source))
                assert kept is not None
                kv_bgsk = kept.kv_bgsk
            else:
                continue
            found += kv_bgsk.chunk(2, dim=1)
        return found

    def encoded(self, input_ids: Tensor, present_bs: Tensor) -> Source:
        model = self.model
        assert model.encoder is not None
        words = model.embedding if model.source_embedding is None else model.source_embedding
        there = there_of(model.config, input_ids, present_bs)
        x_bsd, _ = model.encoder.run(
            words(input_ids, None, 0, present_bs, there),
            (None,) * len(model.encoder.blocks),
            Context(memory=0, padding=present_bs, tokens=input_ids),
        )
        return Source(x_bsd, present_bs)


class Reader(nn.Module):
    """A model that sees both sides: words in the place of masked ones, labels, vectors."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None
    ) -> dict[str, Tensor]:
        model, present_bt = self.model, attention_mask > 0
        there = present_bt if model.config.sinusoidal else None
        context = Context(memory=0, padding=present_bt, tokens=input_ids)
        x_btd, _ = model.run(
            model.embedding(input_ids, token_type_ids, 0, present_bt, there),
            (None,) * len(model.blocks),
            context,
        )
        found = {"last_hidden_state": x_btd}
        if model.head is not None:
            found["logits"] = model.head.logits(x_btd)
        pooled_bd = None
        if model.config.pooler:
            pooled_bd = pool(model.config, model.pooler, x_btd, present_bt)
            found["pooler_output"] = pooled_bd
            if model.pair_head is not None:
                found["pair_logits"] = model.pair_head(pooled_bd)
        if model.label_head is not None:
            found["label_logits"] = model.label_head(x_btd, pooled_bd)
        return found
