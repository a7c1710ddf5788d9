"""Which of several models will be the best, before any of them is trained?

Scores from LiteTransformerSearch (Javaheripi et al. 2022): counts of parameters, which cost
nothing, and gradients at random weights, which cost a few passes. Higher is better for all.

>>> from parformer.config import preset
>>> score("decoder-parameters", preset("pocket"))
1088000.0
>>> small = preset("pocket", pattern="sf", d_model=16, d_inner=32)
>>> score("snip", small, seed=1) == score("snip", small, seed=1)
True

All of them rank models of one mix of blocks alone. Where mixes differ only a training tells:
`train_score` is a short one, and `check_proxy` says so where it matters.
"""

# b batch, t time, v vocabulary

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from types import MappingProxyType

import torch

from parformer.blocks.base import Shape
from parformer.config import ModelConfig
from parformer.costs import cost
from parformer.data.batches import Tokens
from parformer.data.masking import mask_token, mask_tokens
from parformer.embedding import token_shares
from parformer.errors import ConfigError
from parformer.evaluate.perplexity import evaluate
from parformer.fields import check_names, need_at_least
from parformer.model import Model, build, build_from
from parformer.pattern import Pattern
from parformer.recipe import Recipe
from parformer.search.ranking import saliency
from parformer.search.ranking.saliency import Batch
from parformer.tasks import Translate, find_task
from parformer.tasks.translate import within
from parformer.train.distributed import Workers
from parformer.train.session import Session

BATCH, LENGTH = 16, 192
"""Texts and tokens of each that LiteTransformerSearch scores models with."""


@dataclass(frozen=True, slots=True)
class Proxy:
    """A score that stands for quality."""

    words: str
    """What it is, in a few words."""
    forwards: int
    """What it costs, in forward passes; 0 where nothing is built."""
    score: Callable[[Model, Batch, torch.Generator], float] | None = None
    """How a model's copy is scored; None for what costs.cost knows."""


PROXIES: Mapping[str, Proxy] = MappingProxyType(
    {
        "decoder-parameters": Proxy("parameters of the stack", 0),
        "parameters": Proxy("all parameters", 0),
        "grad-norm": Proxy("norms of gradients", 3, lambda m, b, _: saliency.grad_norm(m, b)),
        "snip": Proxy("|weight · gradient|", 3, lambda m, b, _: saliency.snip(m, b)),
        "grasp": Proxy("weight · Hessian · gradient", 8, lambda m, b, _: saliency.grasp(m, b)),
        "fisher": Proxy("(output · gradient)²", 3, lambda m, b, _: saliency.fisher(m, b)),
        "synflow": Proxy("flow of ones", 3, lambda m, b, _: saliency.synflow(m, b)),
        "jacob-cov": Proxy("how slopes differ by row", 3, saliency.jacob_cov),
        "relu-log-det": Proxy("signs before ReLU", 1, lambda m, b, _: saliency.relu_log_det(m, b)),
    }
)

COUNTS = tuple(name for name, proxy in PROXIES.items() if proxy.score is None)
"""Those that count parameters and look at nothing else."""

SHORT_TRAINING = "short-training"
"""What a search may call `train_score`."""


def score(
    name: str,
    model: Model | ModelConfig,
    *,
    batch: Batch | None = None,
    seed: int = 0,
) -> float:
    """One score of a model, or of a configuration with the random weights that `seed` gives."""
    return scores([name], model, batch=batch, seed=seed)[name]


def scores(
    names: Sequence[str],
    model: Model | ModelConfig,
    *,
    batch: Batch | None = None,
    seed: int = 0,
) -> dict[str, float]:
    """Several scores of one model, which is built at most once and left as it is.

    Dropout is off. Without a batch, one is drawn by `draw_batch`. The seed decides first
    weights, the batch and what jacob-cov weighs logits with.
    """
    check_names(names, PROXIES, "proxy")
    config = model.config if isinstance(model, Model) else model
    found = {}
    for name in names:
        if name in COUNTS:
            price = cost(config, tgt_len=1, mem_len=0)
            decoder = name == "decoder-parameters"
            found[name] = float(price.decoder_parameters if decoder else price.parameters)
    wanted = [name for name in names if name not in COUNTS]
    if not wanted:
        return found
    batch = draw_batch(config, seed=seed) if batch is None else batch
    with torch.inference_mode(False), torch.enable_grad(), saliency.plain_kernels():
        twin = _without_dropout(model, seed)
        device = next(twin.parameters()).device
        batch = Batch(batch.tokens_bt.to(device), batch.targets_bt.to(device))
        for name in wanted:
            act = PROXIES[name].score
            assert act is not None
            value = act(twin, batch, torch.Generator().manual_seed(seed))
            if math.isnan(value) or value == math.inf:
                raise ConfigError(f"{name} of this model is {value}; are its weights all numbers?")
            found[name] = value
    return {name: found[name] for name in names}


def _without_dropout(model: Model | ModelConfig, seed: int) -> Model:
    """A model in training mode that nobody else holds, and whose blocks drop nothing."""
    config = model.config if isinstance(model, Model) else model
    config = config.replaced(dropout=0.0, dropatt=0.0, dropkernel=-1.0)
    if isinstance(model, ModelConfig):
        # of scaled first weights no block says anything yet, so a score would know the head alone
        return build(config.replaced(first_weights="family"), seed=seed).train()
    weights = {name: weight.detach() for name, weight in model.named_parameters()}
    return build_from(config, weights).to(next(model.parameters()).device).train()


def draw_batch(
    config: ModelConfig, *, batch: int = BATCH, tgt_len: int = 0, seed: int = 0
) -> Batch:
    """Random tokens and what follows them, or what is masked among them.

    0 for `tgt_len` means 192 as in the paper, or the window where that is shorter. All words are
    equally likely, but rare clusters of an adaptive vocabulary only as `costs` assumes.
    """
    need_at_least("batch", batch, 1)
    need_at_least("tgt_len", tgt_len, 0)
    if config.numbered and tgt_len > config.max_len:
        raise ConfigError(f"tgt_len {tgt_len} exceeds the window of {config.max_len}; lower it")
    length = tgt_len or min(LENGTH, config.max_len or LENGTH)
    generator = torch.Generator().manual_seed(seed)
    shape = (batch, length + 1)
    edges = torch.tensor([(cluster.low, cluster.size) for cluster in config.clusters])
    shares = torch.tensor(token_shares(config), dtype=torch.float64)
    drawn = torch.multinomial(shares, batch * (length + 1), replacement=True, generator=generator)
    low_bt, size_bt = edges[drawn].unbind(1)
    place_bt = torch.rand(drawn.shape, generator=generator, dtype=torch.float64)
    words_bt = (low_bt + (place_bt * size_bt).long()).view(shape)
    if config.head != "masked":
        return Batch(words_bt[:, :-1], words_bt[:, 1:])
    vocab_size = config.vocab_size
    return Batch(*mask_tokens(words_bt[:, 1:], generator, mask_token(vocab_size), vocab_size))


def proxy_flops(name: str, config: ModelConfig, shape: Shape) -> int:
    """What a score takes to compute: so many forward passes (Figure 5 of the paper).

    A backward pass counts as two. Synflow reads a single text, whatever the batch.
    """
    check_names([name], PROXIES, "proxy")
    batch = 1 if name == "synflow" else shape.batch
    price = cost(config, tgt_len=shape.tgt_len, mem_len=shape.mem_len, batch=batch)
    return PROXIES[name].forwards * price.flops


def mixes_blocks(patterns: Iterable[Pattern]) -> bool:
    """Whether some of these patterns have more of one kind of block, in proportion, than others.

    >>> mixes_blocks([Pattern.parse("(sf)x2"), Pattern.parse("(sf)x9")])
    False
    >>> mixes_blocks([Pattern.parse("(sf)x2"), Pattern.parse("sfff")])
    True
    """
    return len({mix_of(pattern) for pattern in patterns}) > 1


def mix_of(pattern: Pattern) -> frozenset[tuple[str, Fraction]]:
    """Each kind of block's share of those that do anything."""
    letters = pattern.letters.replace("i", "")
    return frozenset((kind, Fraction(letters.count(kind), len(letters))) for kind in set(letters))


def check_proxy(name: str, *, mixes: bool) -> None:
    """Refuse a score that cannot rank the models of a space whose mix of blocks varies.

    PAR Transformer's first version (Table 1) has the reason: `(f)x32` has the most parameters of
    all and a perplexity of 252.9, where the others have 22.6 to 31.5. Gradients fail in the same
    way, for they grow with the parameters too; docs/proxies.md has the trial.
    """
    check_names([name], (*PROXIES, SHORT_TRAINING), "proxy")
    if not mixes or name == SHORT_TRAINING:
        return
    why = (
        "(f)x32 has the most parameters and by far the worst perplexity"
        if name in COUNTS
        else "like the parameters, it prefers models without any attention"
    )
    raise ConfigError(
        f"{name} ranks models of one mix of blocks alone, and here the mix varies: {why}; take "
        f"{SHORT_TRAINING}, or a differentiable search, whose supernet is trained"
    )


def train_score(recipe: Recipe, tokens: Tokens, valid: Tokens, *, share: float = 0.15) -> float:
    """Minus the loss on `valid` after a share of a recipe's updates, on its full schedule.

    All in memory, and the same for the same recipe. In the paper 1.25% of a training rank models
    of one mix well (Figure 4); mixes take longer to tell apart, docs/proxies.md says how long.
    −inf if the loss is no number any more.
    """
    if not 0 < share <= 1:
        raise ConfigError(f"share must be above 0 and at most 1, got {share:g}")
    if recipe.train.time:
        raise ConfigError(
            f"train.time {recipe.train.time:g} says no number of steps to take a share of; "
            "set train.steps and leave train.time at 0"
        )
    with torch.random.fork_rng(devices=[]), saliency.plain_kernels():
        session = Session(recipe, tokens, workers=Workers())
        for step in range(math.ceil(share * recipe.train.steps)):
            loss, norm = session.update(step)
            if not bool(torch.isfinite(loss) & torch.isfinite(norm)):
                return -math.inf
        limit, task = recipe.train.evaluate_tokens, find_task(recipe)
        if isinstance(task, Translate):
            lost = task.lost(session.model, within(task.pairs(valid), limit)).loss
        else:
            lost = evaluate(session.model, valid, batch=8, limit=limit).loss
    return -lost if math.isfinite(lost) else -math.inf
