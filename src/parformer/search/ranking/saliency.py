"""What do gradients at random weights say about a model?

Scores that LiteTransformerSearch (Javaheripi et al. 2022) took over from pruning and from vision,
each by its own definition. Only the linear maps inside blocks are looked at; embedding and head
have a part in the gradients alone. Every function here wants a model in training mode, without
dropout and with plain kernels, as `proxies` makes it, and leaves it as it is. Higher is better for
all of them.
"""

# b batch, t time, d width, e embedding width, v vocabulary, n = b × t tokens, c outputs of a map

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from parformer.blocks.feed_forward import FeedForward
from parformer.blocks.sru import Recurrent
from parformer.errors import ConfigError
from parformer.head import ClusterHead, FlatHead, Head
from parformer.kernels import native
from parformer.model import Model

NEAR_ZERO = 1e-5
"""What keeps the logarithm of an eigenvalue finite."""


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Tokens (batch, time), and what each of them is to predict."""

    tokens_bt: Tensor
    targets_bt: Tensor


def grad_norm(model: Model, batch: Batch) -> float:
    """Norms of the loss' gradients, one of each map, summed."""
    gradients = weight_gradients(model, loss_of(model, batch))
    return sum(float(gradient.norm()) for gradient in gradients.values())


def snip(model: Model, batch: Batch) -> float:
    """What the loss would change by without each weight, to first order (Lee et al. 2019)."""
    return touched(weight_gradients(model, loss_of(model, batch)))


def grasp(model: Model, batch: Batch) -> float:
    """How much the gradient's norm lives on the weights: Σ W · Hg (Wang et al. 2020).

    The reference gives −Σ W · Hg and turns the sign again before it ranks.
    """
    if any(isinstance(block, Recurrent) for block in model.blocks):
        raise ConfigError(
            "grasp needs second derivatives, which a recurrence has not (r and a in "
            f"{str(model.config.pattern)!r}); take snip"
        )
    weights = [layer.weight for layer in scored_layers(model)]
    with sdpa_kernel(SDPBackend.MATH):  # the fused ones have no second derivative
        first = torch.autograd.grad(loss_of(model, batch), weights, create_graph=True)
        along = torch.stack([(g * g.detach()).sum() for g in first]).sum()
        second = torch.autograd.grad(along, weights)
    return sum(float((w.detach() * hg).sum()) for w, hg in zip(weights, second, strict=True))


def fisher(model: Model, batch: Batch) -> float:
    """What the loss would change by without each output of each map (Theis et al. 2018).

    Half the mean over tokens of (output · gradient)², weighted with the map's inputs.
    """
    layers = scored_layers(model)
    with outputs_of(layers) as outputs:
        loss = loss_of(model, batch)
    gradients = torch.autograd.grad(loss, [outputs[layer] for layer in layers])
    total = 0.0
    for layer, g in zip(layers, gradients, strict=True):
        a = outputs[layer]
        moved_nc = (a * g).flatten(0, -2)
        total += layer.in_features * float(0.5 * moved_nc.detach().square().mean(0).sum())
    return total


def synflow(model: Model, batch: Batch) -> float:
    """How much flows through all weights at once when none is negative (Tanaka et al. 2020).

    One text of ones instead of words, in double precision; norms and softmax are left as they are,
    as in the reference. All places of the text are alike then, so attention's answers and
    gradients do not depend on positions, and those need no ones.
    """
    config = model.config
    if (config.norm, config.norm_type) == ("pre", "layer") and not any(
        isinstance(block, Recurrent) for block in model.blocks
    ):
        raise ConfigError(
            "synflow reads ones, of which a layer norm before each block leaves nothing "
            f"(family {config.family!r}, norm 'pre'); take snip"
        )
    model = deepcopy(model).double()
    head = head_of(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.abs_()
    with hooked([model.embedding], lambda _, __, output: torch.ones_like(output)):
        hidden_btd = hidden_of(model, torch.zeros_like(batch.tokens_bt[:1]))
    words_v = hidden_btd.new_ones(short_list(head))
    flow = read_out(head, hidden_btd, words_v, clusters=True).sum()
    return touched(weight_gradients(model, flow))


def jacob_cov(model: Model, batch: Batch, generator: torch.Generator) -> float:
    """How differently the output depends on its inputs, row by row (Mellor et al. 2021).

    The logits are weighed with random numbers. A row is a place in the text where the reference
    has time first (Transformer-XL), and a text elsewhere.
    """
    head = head_of(model)
    reach = 1 / math.sqrt(model.config.vocab_size)
    words = model.embedding.words
    with outputs_of([words]) as outputs:
        hidden_btd = hidden_of(model, batch.tokens_bt)
    weights_v = torch.empty(model.config.vocab_size).uniform_(-reach, reach, generator=generator)
    answer = read_out(head, hidden_btd, weights_v.to(hidden_btd)).sum()
    (slopes_btd,) = torch.autograd.grad(answer, outputs[words])
    if model.config.family == "transformer-xl":
        slopes_btd = slopes_btd.transpose(0, 1)
    return covariance_score(slopes_btd.flatten(1).double())


def covariance_score(rows: Tensor) -> float:
    """Low where rows are alike, from the eigenvalues v of their correlations."""
    if len(rows) < 2:
        raise ConfigError(
            "jacob-cov compares rows, and there is one; give two texts or more (Transformer-XL: "
            "two tokens)"
        )
    values = torch.linalg.eigvalsh(torch.corrcoef(rows)) + NEAR_ZERO
    return -float((values.log() + 1 / values).sum())


def relu_log_det(model: Model, batch: Batch) -> float:
    """How well the signs before all ReLUs tell tokens apart (Mellor et al. 2021).

    The logarithm of a determinant; −inf where some tokens cannot be told apart.
    """
    blocks = [block for block in model.blocks if isinstance(block, FeedForward)]
    if model.config.activation != "relu" or not blocks:
        raise ConfigError(
            f"relu-log-det needs feed-forward blocks with ReLU, got {str(model.config.pattern)!r} "
            f"with activation {model.config.activation!r}; take jacob-cov"
        )
    with outputs_of([block.inner for block in blocks]) as outputs, torch.no_grad():
        hidden_of(model, batch.tokens_bt)
    alike_nn = torch.zeros(batch.tokens_bt.numel(), batch.tokens_bt.numel())
    for before_btc in outputs.values():
        if model.config.gated:
            before_btc = before_btc.chunk(2, dim=-1)[0]
        on_nc = (before_btc.flatten(0, 1) > 0).float().to(alike_nn.device)
        alike_nn += on_nc @ on_nc.T + (1 - on_nc) @ (1 - on_nc).T
    return log_determinant(alike_nn.double())


def log_determinant(matrix_nn: Tensor) -> float:
    """Of a sum of Gram matrices; −inf where it is singular, whatever rounding makes of that."""
    factor_nn, failed = torch.linalg.cholesky_ex(matrix_nn)
    pivots_n = factor_nn.diagonal().square()
    least = len(matrix_nn) * torch.finfo(matrix_nn.dtype).eps * float(matrix_nn.diagonal().max())
    if int(failed) or float(pivots_n.min()) <= least:
        return -math.inf
    return float(pivots_n.log().sum())


# Of a model


def scored_layers(model: Model) -> list[nn.Linear]:
    """The linear maps inside blocks."""
    found = [module for module in model.blocks.modules() if isinstance(module, nn.Linear)]
    if not found:
        raise ConfigError(
            f"no block of {str(model.config.pattern)!r} has a linear map to score; add some"
        )
    return found


def weight_gradients(model: Model, of: Tensor) -> dict[nn.Linear, Tensor]:
    layers = scored_layers(model)
    gradients = torch.autograd.grad(of, [layer.weight for layer in layers])
    return dict(zip(layers, gradients, strict=True))


def touched(gradients: Mapping[nn.Linear, Tensor]) -> float:
    """Σ |weight · gradient|."""
    return sum(float((layer.weight.detach() * g).abs().sum()) for layer, g in gradients.items())


def loss_of(model: Model, batch: Batch) -> Tensor:
    head_of(model)
    loss = model(batch.tokens_bt, targets=batch.targets_bt).loss
    assert isinstance(loss, Tensor)
    return loss


def head_of(model: Model) -> Head:
    if model.head is None:
        raise ConfigError("the model has no head, so nothing to predict; set head='lm'")
    return model.head


def hidden_of(model: Model, tokens_bt: Tensor) -> Tensor:
    """What the head reads; almost no logits are made for it."""
    hidden_btd: Tensor = model(tokens_bt, last_only=True).hidden
    return hidden_btd


def short_list(head: Head) -> int:
    """Words that a head has beside its rare clusters."""
    if isinstance(head, ClusterHead):
        return head.clusters[0].size
    assert isinstance(head, FlatHead)
    return head.out.weight.shape[0]


def read_out(head: Head, x_btd: Tensor, weights_v: Tensor, *, clusters: bool = False) -> Tensor:
    """The weighted sum (batch, time) of all logits, or of the first ones, without biases.

    Before any softmax; with `clusters` those of the rare clusters are added. The sum is taken of
    the tables first, so that no logits are made.
    """
    if isinstance(head, FlatHead):
        if head.transform is not None:
            x_btd = head.norm(head.activation(head.transform(x_btd)))
        elif head.projection is not None:
            x_btd = x_btd @ head.projection
        return x_btd @ (weights_v @ head.out.weight)
    assert isinstance(head, ClusterHead)
    sizes = [cluster.size for cluster in head.clusters]
    tables = list(torch.split(head.tables[0], sizes) if head.one_table else head.tables)
    total_bt = x_btd.new_zeros(x_btd.shape[:2])
    for i, part_v in enumerate(torch.split(weights_v, sizes[: 1 if clusters else None])):
        summed_e = part_v @ tables[i]
        if clusters:
            summed_e = summed_e + head.cluster_weight.sum(0)
        x_bte = x_btd @ head.projections[i] if len(head.projections) else x_btd
        total_bt = total_bt + x_bte @ summed_e
    return total_bt


# While it runs


@contextmanager
def outputs_of(modules: Sequence[nn.Module]) -> Iterator[dict[nn.Module, Tensor]]:
    """What each of these modules gives inside `with`."""
    outputs: dict[nn.Module, Tensor] = {}

    def keep(module: nn.Module, _: object, output: Tensor) -> None:
        assert module not in outputs  # none of them runs twice in a step without a past
        outputs[module] = output

    with hooked(modules, keep):
        yield outputs


@contextmanager
def hooked(modules: Sequence[nn.Module], hook: Callable[..., Tensor | None]) -> Iterator[None]:
    """Inside `with`, each of these modules asks the hook after it ran."""
    handles = [module.register_forward_hook(hook) for module in modules]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def plain_kernels() -> Iterator[None]:
    """Compiled kernels pass hooks by and have no second derivative."""
    before = native.enabled
    native.enable(False)
    try:
        yield
    finally:
        native.enable(before)
