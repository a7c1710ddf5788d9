"""A Transformer-XL step as a textbook and the authors' released code do it.

One projection gives queries, keys and values for memory and target rows alike, distances
are projected anew in every step, scores are shifted by padding, and nothing is kept but
the layers' inputs. Its adaptive softmax joins short list and clusters in one weight per step.
It takes its weights from a Parformer model, so that both compute the same numbers.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from parformer.blocks.attention import SelfAttention
from parformer.blocks.feed_forward import FeedForward
from parformer.head import ClusterHead
from parformer.model import Model


class Textbook:
    """Steps through a text with a memory of `mem_len` inputs per block."""

    def __init__(self, model: Model, mem_len: int, batch: int) -> None:
        self.model, self.mem_len = model, mem_len
        width = model.config.d_model
        like = model.embedding.words.tables[0]
        self.memory = [like.new_zeros(batch, mem_len, width).detach() for _ in model.blocks]

    def step(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """The loss of one segment; the memory moves on."""
        model = self.model
        time = tokens.shape[1]
        x = model.embedding(tokens, None, 0)
        keys = time + self.mem_len
        distance = torch.arange(keys - 1, -1, -1.0)
        if model.config.clamp_len > 0:
            distance = distance.clamp(max=model.config.clamp_len)
        rate = 1 / 10_000 ** (torch.arange(0.0, x.shape[-1], 2.0) / x.shape[-1])
        angle = torch.outer(distance, rate)
        positions = torch.cat((angle.sin(), angle.cos()), dim=-1).to(x.dtype)
        ones = torch.ones(time, keys, dtype=torch.bool)
        hidden = ones.triu(1 + self.mem_len)
        if model.config.same_length:
            hidden = hidden | ones.tril(keys - self.mem_len - time)
        for i, block in enumerate(model.blocks):
            both = torch.cat((self.memory[i], x), dim=1)
            if isinstance(block, SelfAttention):
                x = self.attend(block, x, both, positions, hidden)
            elif isinstance(block, FeedForward):
                x = block.norm(x + block.out(torch.relu(block.inner(x))))
            self.memory[i] = both[:, -self.mem_len :].detach()
        return self.losses(x.flatten(0, 1), targets.flatten()).mean()

    def losses(self, x: Tensor, targets: Tensor) -> Tensor:
        """The adaptive softmax of the released code, for clusters of one width."""
        head, config = self.model.head, self.model.config
        assert isinstance(head, ClusterHead)
        assert head.bias is not None
        table, edges = head.tables[0], [0, *config.cutoffs, config.vocab_size]
        head_weight = torch.cat([table[: edges[1]], head.cluster_weight])
        head_bias = torch.cat([head.bias[: edges[1]], head.cluster_bias])
        head_logprob = F.log_softmax(F.linear(x, head_weight, head_bias), dim=1)
        losses = torch.zeros_like(targets, dtype=x.dtype)
        for i in range(len(edges) - 1):
            low, high = edges[i], edges[i + 1]
            places = ((targets >= low) & (targets < high)).nonzero().squeeze(1)
            if places.numel() == 0:
                continue
            inside = targets.index_select(0, places) - low
            logprob = head_logprob.index_select(0, places)
            if i > 0:
                tail = F.linear(x.index_select(0, places), table[low:high], head.bias[low:high])
                rare = F.log_softmax(tail, dim=1).gather(1, inside[:, None]).squeeze(1)
                chosen = logprob[:, edges[1] + i - 1] + rare
            else:
                chosen = logprob.gather(1, inside[:, None]).squeeze(1)
            losses = losses.index_copy(0, places, -chosen)
        return losses

    def attend(
        self, block: SelfAttention, x: Tensor, both: Tensor, positions: Tensor, hidden: Tensor
    ) -> Tensor:
        batch, time, _ = x.shape
        keys, heads, width = both.shape[1], block.heads, block.width
        q, k, v = block.qkv(both).chunk(3, dim=-1)
        q = q[:, -time:].view(batch, time, heads, width)
        k = k.reshape(batch, keys, heads, width)
        v = v.reshape(batch, keys, heads, width)
        r = block.distance(positions).view(keys, heads, width)
        assert self.model.content_bias is not None
        assert self.model.position_bias is not None
        content = self.model.content_bias.view(heads, width)
        position = self.model.position_bias.view(heads, width)
        by_content = torch.einsum("bihd,bjhd->bhij", q + content, k)
        by_distance = shift(torch.einsum("bihd,jhd->bhij", q + position, r))
        scores = (by_content + by_distance) / math.sqrt(width)
        weights = scores.masked_fill(hidden, -math.inf).softmax(dim=-1)
        y = torch.einsum("bhij,bjhd->bihd", weights, v).reshape(batch, time, heads * width)
        return block.norm(x + block.out(y))


def shift(scores: Tensor) -> Tensor:
    """The relative shift of the paper: pad a column, fold, drop a row."""
    batch, heads, time, keys = scores.shape
    padded = F.pad(scores, (1, 0)).view(batch, heads, keys + 1, time)
    return padded[:, :, 1:].view(batch, heads, time, keys)
