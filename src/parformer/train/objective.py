"""What is a model to get better at: its task, or that and another one's answers?

The teacher reads what the student reads. Its answers, made evener by a temperature, are compared
with the student's; where asked for, so is what blocks give, and what attention looks at, layer by
layer: where the student has fewer layers, each learns from the one at the same share of the depth.
"""

# b batch, t time, v vocabulary, d width, h heads, n keys

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from parformer.blocks.taps import Taps
from parformer.data.batches import Batch, Batches
from parformer.data.labelled import Examples
from parformer.embedding import IGNORE
from parformer.errors import ConfigError, FolderError
from parformer.model import Model, load
from parformer.shaping import CompressConfig
from parformer.state import Output, State
from parformer.store.files import sha256
from parformer.store.folder import WEIGHTS
from parformer.tasks import Task
from parformer.tasks.labelled import LabelTask, label_logits
from parformer.tasks.span import Span
from parformer.train.lessons import TOLD, lessons
from parformer.train.run import open_run
from parformer.train.transfer import outermost


class Objective(nn.Module):
    """A model and what it is to get better at: the loss of its task.

    Anything with this forward can be trained: distillation, a supernet.
    """

    def __init__(self, model: Model, task: Task) -> None:
        super().__init__()
        self.model, self.task = model, task
        self.idle = model.config.pooler
        """Whether some parameters may go without a gradient, which DDP has to know."""

    def forward(self, batch: Batch, state: State | None) -> tuple[Tensor, State | None]:
        found = self.task.loss(self.model, batch, state)
        return found.total, found.state


class Distilling(Objective):
    """A student's own loss, and how far it is from its teacher."""

    def __init__(self, model: Model, task: Task, config: CompressConfig) -> None:
        super().__init__(model, task)
        self.config = config
        # a list hides it: a teacher is neither trained nor saved
        self.teachers = [open_teacher(config, model)]
        self.active: int | None = None
        """The layer in hand, where they are taught one by one."""
        self.idle = self.idle or config.progressive > 0

    def forward(self, batch: Batch, state: State | None) -> tuple[Tensor, State | None]:
        assert state is None, "a teacher reads windows"
        if isinstance(self.task, LabelTask):
            return self.of_labels(self.task, batch), None
        heard = Taps(*self.config.listens, gradients=True) if self.config.listens else None
        told = Taps(*self.config.listens) if self.config.listens else None
        given = {name: batch.inputs[name] for name in READ if name in batch.inputs}
        with torch.no_grad():
            teacher = self.teachers[0](batch.tokens_bt, taps=told, **given)
        part = batch.inputs.get("part")
        out = self.model(batch.tokens_bt, taps=heard, part=part, **given)
        if self.active is not None and heard is not None and told is not None:
            return layers_apart(heard, told, self.config, self.active), None
        own, theirs, wanted = answers(out, teacher, batch.targets)
        hard = F.cross_entropy(own, wanted)
        soft = distance(own, theirs, self.config)
        total = (1 - self.config.soft) * hard + self.config.soft * soft
        if heard is not None and told is not None and not self.config.progressive:
            total = total + layers_apart(heard, told, self.config)
        return total, None

    def lessons(self, batches: Batches, updates: int) -> Batches:
        """Batches with the teacher's answers, where it would be asked for the same ones again."""
        again = updates > batches.per_epoch and isinstance(batches, Examples)
        if not again or isinstance(self.task, Span):  # a span's are one for every token
            return batches
        assert isinstance(batches, Examples)
        return lessons(batches, self.teachers[0], teacher_identity(self.config.teacher))

    def of_labels(self, task: LabelTask, batch: Batch) -> Tensor:
        """The same for whoever tells labels; scores that are no classes are compared by squares."""
        own = label_logits(self.model, batch)
        if TOLD in batch.inputs:
            theirs = batch.inputs[TOLD]
        else:
            with torch.no_grad():
                theirs = label_logits(self.teachers[0], batch)
        hard = task.loss_of(own, batch)
        if own.dim() == 3:  # where an answer begins and ends: over the tokens there are
            there_b1t = batch.inputs["padding"][:, None]
            own, theirs = (
                x.transpose(1, 2).masked_fill(~there_b1t, LEAST).flatten(0, 1)
                for x in (own, theirs)
            )
        scores = own.shape[-1] == 1
        config = replace(self.config, soft_loss="mse") if scores else self.config
        return (1 - config.soft) * hard + config.soft * distance(own, theirs, config)


LEAST = -1e4
"""A logit of what cannot be."""
READ = ("token_types", "padding", "source", "source_padding")
"""Inputs that both read beside tokens."""


def teacher_identity(teacher: str) -> str:
    """SHA-256 of a teacher's weights."""
    return sha256(open_run(Path(teacher)).folder / WEIGHTS)


def open_teacher(config: CompressConfig, student: Model) -> Model:
    """The teacher, if it speaks of the same tokens and is the one that the run began with."""
    if config.teacher_identity and teacher_identity(config.teacher) != config.teacher_identity:
        raise FolderError(
            f"the weights of the teacher {config.teacher!r} are not those that the run was started "
            "with; restore them, or choose another --run"
        )
    model = load(open_run(Path(config.teacher)).folder)
    if student.config.label_head != "none" and config.listens:
        raise ConfigError("features and attention are learned from words, not from labels; leave 0")
    for name in ("vocab_size", "causal", "head", "label_head", "labels"):
        ours, theirs = getattr(student.config, name), getattr(model.config, name)
        if ours != theirs:
            raise FolderError(
                f"the teacher {config.teacher!r} has {name} {theirs!r}, the student {ours!r}; "
                "take a teacher of the same vocabulary and kind"
            )
    return model.requires_grad_(False).eval()


def answers(out: Output, teacher: Output, targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Logits of both and what was wanted, at places that count."""
    assert out.logits is not None
    assert teacher.logits is not None
    flat_n = targets.flatten().long()
    places = flat_n != IGNORE
    own, theirs = (x.flatten(0, -2)[places].float() for x in (out.logits, teacher.logits))
    return own, theirs, flat_n[places]


def distance(own_nv: Tensor, theirs_nv: Tensor, config: CompressConfig) -> Tensor:
    """How far answers are apart; of the size of a loss whatever the temperature."""
    if config.soft_loss == "mse":
        return F.mse_loss(own_nv, theirs_nv)
    heat = config.temperature
    log_own, log_theirs = ((x / heat).log_softmax(-1) for x in (own_nv, theirs_nv))
    if config.soft_loss == "kl":
        return F.kl_div(log_own, log_theirs, reduction="batchmean", log_target=True) * heat**2
    return -(log_theirs.exp() * log_own).sum(-1).mean() * heat**2


def layers_apart(
    heard: Taps, told: Taps, config: CompressConfig, only: int | None = None
) -> Tensor:
    """Differences of what blocks give and look at, mean over the student's layers, or of one."""
    total = torch.zeros(())
    own, theirs = outermost(heard.having("output")), outermost(told.having("output"))
    for mine, other in matched(own, theirs):
        if not meant(mine, only):
            continue
        x_btd, y_btd = own[mine], theirs[other]
        if config.features:
            if x_btd.shape != y_btd.shape:
                raise ConfigError(
                    f"compress.features compares streams of one width, not {x_btd.shape[-1]} with "
                    f"{y_btd.shape[-1]}; set it to 0"
                )
            size = x_btd.shape[-1:]
            apart = F.mse_loss(F.layer_norm(x_btd, size), F.layer_norm(y_btd, size))
            total = total + config.features * apart / len(own)
        if config.means:
            apart = F.mse_loss(x_btd.mean(-1), y_btd.mean(-1))
            total = total + config.means * apart / len(own)
        if config.variances:
            apart = (x_btd.var(-1, correction=0) - y_btd.var(-1, correction=0)).abs().mean()
            total = total + config.variances * apart / len(own)
    if config.attention:
        total = total + config.attention * looks_apart(heard, told, only)
    return total


def meant(place: str, only: int | None) -> bool:
    """Whether a place is in the layer that is asked for; any is, where none is."""
    return only is None or place.split(".")[0] == str(only)


def looks_apart(heard: Taps, told: Taps, only: int | None = None) -> Tensor:
    """Divergence of what heads look at, mean over layers, heads and queries."""
    own, theirs = heard.having("weights"), told.having("weights")
    total = torch.zeros(())
    for mine, other in matched(own, theirs):
        if not meant(mine, only):
            continue
        x_bhtn, y_bhtn = own[mine], theirs[other]
        if x_bhtn.shape != y_bhtn.shape:
            raise ConfigError(
                f"compress.attention compares as many heads, not {x_bhtn.shape[1]} with "
                f"{y_bhtn.shape[1]}; set it to 0"
            )
        log_own, log_theirs = (x.float().clamp(min=1e-9).log() for x in (x_bhtn, y_bhtn))
        total = total + (y_bhtn * (log_theirs - log_own)).sum(-1).mean() / len(own)
    return total


def matched(own: Mapping[str, Tensor], theirs: Mapping[str, Tensor]) -> list[tuple[str, str]]:
    """Each of the student's layers, and the teacher's at the same share of the depth.

    >>> pair = {"0": torch.ones(1), "1": torch.ones(1)}
    >>> matched(pair, {str(n): torch.ones(1) for n in range(6)})
    [('0', '2'), ('1', '5')]
    """
    if not own or not theirs:
        return []
    names = list(theirs)
    size = len(names) / len(own)
    return [(mine, names[round((i + 1) * size) - 1]) for i, mine in enumerate(own)]
