"""Do groups and two stacks keep what every block promises, however they are nested?"""

# b batch, t time, s source

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize, prune
from torch.testing import assert_close

import parformer as pf
from parformer.blocks import BlockState, Repeated
from parformer.blocks.linear import Linear
from parformer.blocks.places import sinusoids
from parformer.config import FAMILIES, ModelConfig
from parformer.costs import cost
from parformer.errors import ConfigError, InputError
from parformer.model import Model, build, refill
from parformer.state import State
from parformer.store.folder import read_tensors
from parformer.weights import named_tensors
from tests.conftest import DIFFERENT, context_of, lively, noise, small_config

PATTERNS = {
    "shared": "{sf}x3",
    "shared attention": "(s[share=a]f)x3",
    "bottleneck": "<sff>x2",
    "fed bottlenecks": "<sff>[feed=shared]<sf>[feed=outside]<sf>[feed=inside]",
    "inverted bottleneck": "<sf>[feed=outside,wide,width=24] <fs>[feed=shared,wide,width=20]",
    "fed and shared": "{<{sf}x2 s[share=a]s[share=a]>[feed=shared]f}x2",
    "nested": "{<s{f}x2>f}x2 s",
    "recurrence inside": "{rs}x2 <af>",
    "Synthesizers inside": "{y[dense+vanilla,alpha]f}x2 <y[factored-random]s> y[fixed+random]",
    "n-grams inside": "{n[rows=50]f}x2 <n[to=2]s> n[from=3]",
    "near and far inside": "{l[kernel=3]f}x2 <l[light]> l[attend=0,kernel=4]",
    "two stacks": "(sf)x2 | (scf)x2",
    "two stacks of groups": "{sf}x2 | <sf> {scf}x2 <c>",
    "two light stacks": "(lf)x2 | (lcf)x2",
}
CAUSAL = [family for family in DIFFERENT if FAMILIES[family]["causal"]]
VOCAB, TIME = 13, 9

any_pattern = pytest.mark.parametrize("pattern", PATTERNS.values(), ids=PATTERNS)
any_family = pytest.mark.parametrize("family", CAUSAL)


def make(family: str, pattern: str, dtype: torch.dtype = torch.float64, **changes: Any) -> Model:
    """A small model whose every weight shows; its bottlenecks are half as wide as its stream."""
    sizes: dict[str, Any] = {"d_model": 16, "n_head": 2, "d_bottleneck": 8, "pattern": pattern}
    if family in ("transformer-xl", "sru"):
        sizes["mem_len"] = 30
    return lively(build(small_config(family, **(sizes | changes)), dtype=dtype))


def text(time: int = TIME, batch: int = 2, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(VOCAB, (batch, time), generator=generator)


def source_for(model: Model, batch: int = 2) -> Tensor | None:
    return None if model.encoder is None else text(5, batch, seed=9)


def run(model: Model, tokens: Tensor, lengths: list[int]) -> tuple[Tensor, State]:
    """Logits of a text in pieces; a source comes with the first, in training with all."""
    source, state, logits = source_for(model, len(tokens)), None, []
    for piece in torch.split(tokens, lengths, dim=1):
        out = model(piece, state, source=source)
        logits.append(out.logits)
        state = out.state
        source = source if model.training else None
    return torch.cat(logits, dim=1), state


@any_family
@any_pattern
@pytest.mark.parametrize("training", [True, False])
def test_any_pieces_give_what_one_gives(family: str, pattern: str, training: bool) -> None:
    model = make(family, pattern).train(training)
    with torch.set_grad_enabled(training):
        whole, _ = run(model, text(), [TIME])
        for lengths in ([4, 5], [1] * TIME, [2, 1, 6]):
            assert_close(run(model, text(), lengths)[0], whole)


@any_family
@any_pattern
def test_the_future_never_leaks(family: str, pattern: str) -> None:
    model = make(family, pattern)
    changed = text()
    changed[:, 5:] = (changed[:, 5:] + 1) % VOCAB
    with torch.no_grad():
        before, after = run(model, text(), [TIME])[0], run(model, changed, [TIME])[0]
    assert_close(before[:, :5], after[:, :5])
    assert not torch.allclose(before[:, 5:], after[:, 5:])


@any_family
@any_pattern
def test_a_saved_model_is_the_model(family: str, pattern: str, tmp_path: Path) -> None:
    model = make(family, pattern, torch.float32)
    model.save(tmp_path / "model")
    again = pf.load(tmp_path / "model")
    assert str(again.config.pattern) == str(pf.Pattern.parse(pattern))
    assert count(again) == count(model) == pf.cost(model.config).parameters
    with torch.no_grad():
        assert_close(run(again, text(), [TIME])[0], run(model, text(), [TIME])[0])


def count(model: Model) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


@any_pattern
def test_groups_learn(pattern: str) -> None:
    """One text by heart: every weight has a gradient, and the loss falls."""
    model = build(small_config("gpt2", pattern=pattern, d_model=16, n_head=2, d_bottleneck=8))
    model.train()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    losses = []
    for _ in range(30):
        loss = model(text(), targets=text(seed=3), source=source_for(model)).loss
        optimizer.zero_grad()
        loss.backward()
        assert all(parameter.grad is not None for parameter in model.parameters())
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.6 * losses[0]


# Sharing


def test_shared_weights_are_there_once_and_work_every_time() -> None:
    apart, shared, named = (
        make("gpt2", pattern) for pattern in ("(sf)x3", "{sf}x3", "(s[share=a]f[share=b])x3")
    )
    one = count_blocks(make("gpt2", "sf"))
    assert (count_blocks(apart), count_blocks(shared), count_blocks(named)) == (3 * one, one, one)
    weights = dict(shared.named_parameters())
    for name, parameter in apart.named_parameters():
        if name.startswith("blocks."):
            _, number, rest = name.split(".", 2)
            parameter.data.copy_(weights[f"blocks.0.inside.blocks.{int(number) % 2}.{rest}"])
        else:
            parameter.data.copy_(weights[name])
    with torch.no_grad():
        assert_close(run(shared, text(), [4, 5])[0], run(apart, text(), [4, 5])[0])
    prices = [pf.cost(model.config) for model in (apart, shared, named)]
    assert len({(price.flops, price.state_bytes) for price in prices}) == 1


def count_blocks(model: Model) -> int:
    return sum(parameter.numel() for parameter in model.blocks.parameters())


def test_a_gradient_of_shared_weights_is_the_sum_over_its_uses() -> None:
    model = make("gpt2", "{f}x2")
    (group,) = model.blocks
    assert isinstance(group, Repeated)
    model(text(), targets=text(seed=3)).loss.backward()
    together = group.inside.blocks[0].inner.weight.grad.clone()
    twin = make("gpt2", "ff")
    for block in twin.blocks:
        block.load_state_dict(group.inside.blocks[0].state_dict())
    with torch.no_grad():
        for name in ("embedding", "head", "final_norm"):
            getattr(twin, name).load_state_dict(getattr(model, name).state_dict())
    twin(text(), targets=text(seed=3)).loss.backward()
    assert_close(together, sum(block.inner.weight.grad for block in twin.blocks))


@pytest.mark.parametrize("feed", ["inside", "shared", "outside"])
@pytest.mark.parametrize("norm", ["layer", "affine"])
def test_a_bottleneck_feeds_its_attention_as_its_brackets_say(feed: str, norm: str) -> None:
    """Against MobileBERT's layer written out, outputs and gradients."""
    model = make("bert", f"<sff>[feed={feed}]", norm_type=norm, activation="relu")
    (group,) = model.blocks
    x_btd = noise(2, 5, 16).requires_grad_()
    y_btd, _ = group(x_btd, None, context_of(model, 2))
    weights = {name: p.detach().clone().requires_grad_() for name, p in group.named_parameters()}
    twin_btd = x_btd.detach().clone().requires_grad_()
    wanted_btd = mobilebert_layer(weights, twin_btd, feed, affine=norm == "affine")
    assert_close(y_btd, wanted_btd)
    probe = noise(2, 5, 16, seed=1)
    (y_btd * probe).sum().backward()
    (wanted_btd * probe).sum().backward()
    assert_close(x_btd.grad, twin_btd.grad)
    for name, parameter in group.named_parameters():
        assert_close(parameter.grad, weights[name].grad, msg=name)


def mobilebert_layer(w: dict[str, Tensor], x: Tensor, feed: str, *, affine: bool) -> Tensor:
    """One layer, step by step."""

    def linear(name: str, x: Tensor) -> Tensor:
        return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]

    def norm(name: str, x: Tensor) -> Tensor:
        if not affine:
            variance = x.var(-1, correction=0, keepdim=True)
            x = (x - x.mean(-1, keepdim=True)) / (variance + 1e-12).sqrt()
        return x * w[f"{name}.weight"] + w[f"{name}.bias"]

    inner = norm("down_norm", linear("down", x))
    s = "inside.blocks.0"
    if feed == "shared":
        narrow = norm("shared_norm", linear("shared", x))
        q, k = linear(f"{s}.qkv.qk", narrow).chunk(2, -1)
        v = linear(f"{s}.qkv.v", x)
    else:
        q, k, v = linear(f"{s}.qkv", x if feed == "outside" else inner).chunk(3, -1)
    q, k, v = (part.unflatten(-1, (2, 4)).transpose(1, 2) for part in (q, k, v))
    weights = (q @ k.mT / 2).softmax(-1)
    y = (weights @ v).transpose(1, 2).flatten(2)
    y = norm(f"{s}.norm", linear(f"{s}.out", y) + inner)
    for f in ("inside.blocks.1", "inside.blocks.2"):
        y = norm(f"{f}.norm", linear(f"{f}.out", linear(f"{f}.inner", y).relu()) + y)
    return norm("norm", linear("out", y) + x)


def test_what_a_bottleneck_drops_goes_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Inside a fed one nothing is dropped but attention weights, as MobileBERT has it."""
    plain, fed = (
        make("bert", pattern, dropout=0.5, dropatt=0.25).blocks[0]
        for pattern in ("<sf>", "<sf>[feed=inside]")
    )
    assert (plain.dropout, [block.dropout for block in plain.inside.blocks]) == (0.5, [0.5, 0.5])
    assert (fed.dropout, [block.dropout for block in fed.inside.blocks]) == (0.5, [0.0, 0.0])
    assert fed.inside.blocks[0].dropatt == 0.25


def test_the_score_of_a_place_without_a_token() -> None:
    """Against scores that are replaced one by one."""
    model = make("bert", "s", absent_score=-6.0)
    block, x_btd = model.blocks[0], noise(2, 5, 16)
    present = torch.tensor([[True] * 5, [True] * 3 + [False] * 2])
    y_btd, _ = block(x_btd, None, context_of(model, 2, padding=present))
    q, k, v = (part.unflatten(-1, (2, 8)).transpose(1, 2) for part in block.qkv(x_btd).chunk(3, -1))
    scores = q @ k.mT / 8**0.5
    scores[1, ..., 3:] = -6
    wanted = (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)
    assert_close(y_btd, block.norm(x_btd + block.out(wanted)))
    assert not torch.allclose(
        y_btd, make("bert", "s").blocks[0](x_btd, None, context_of(model, 2, padding=present))[0]
    )
    causal = make("gpt2", "s", absent_score=-6.0)
    later = text()
    later[:, 5:] = (later[:, 5:] + 1) % VOCAB
    present = torch.ones(2, TIME, dtype=torch.bool)
    present[1, 2] = False
    with torch.no_grad():
        before, after = (causal(t, padding=present).logits for t in (text(), later))
    assert_close(before[:, :5], after[:, :5])


@pytest.mark.parametrize(
    ("pattern", "says"),
    [
        ("<sf>[feed=both]", "unknown feed in '<sf>[feed=both]', 'both'; known: inside, shared, ou"),
        ("<sf>[wid=8]", "unknown option 'wid' in '<sf>[wid=8]'; known options: feed, wide, width"),
        ("<sf>[share=a]", "unknown option 'share'"),
        ("<sf>[width=0]", "option 'width' in '<sf>[width=0]' must be at least 1"),
        ("<sf>[wide=2]", "option 'wide' in '<sf>[wide=2]' takes no value"),
        ("<sf>[width=17]", "has width 17, wider than the stream's 16; lower width= or d_bottle"),
        ("<sf>[wide]", "has width 8, not wider than the stream's 16; raise width="),
        ("<ff>[feed=shared]", "feed=shared in '<ff>[feed=shared]' is what s inside reads, and"),
        ("<<s>f>[feed=outside]", "there is none; leave it out or write an s"),
        ("<s[share=a]>[feed=shared]<s[share=a]>", "cannot share the weights of 's[share=a]' of wi"),
    ],
)
def test_brackets_that_make_no_sense_are_refused(pattern: str, says: str) -> None:
    for attempt in (lambda: make("gpt2", pattern), lambda: make("bert", pattern)):
        with pytest.raises(ConfigError) as caught:
            attempt()
        assert says in str(caught.value)
        assert "\n" not in str(caught.value)
    with pytest.raises(ConfigError, match="has width 20, wider than the stream's 16"):
        make("gpt2", "<sf>", d_bottleneck=20)


@pytest.mark.parametrize("attempt", [build, cost])
def test_names_that_stand_for_different_blocks_are_refused(
    attempt: Callable[[ModelConfig], object],
) -> None:
    for pattern, says in (
        ("s[share=a]f[share=a]", r"'f\[share=a\]'.*cannot share the weights of 's\["),
        ("s[share=a]<s[share=a]>", "of width 8 cannot share"),
        ("f[inner=9,share=a]f[inner=8,share=a]", r"'f\[inner=8,.* cannot share"),
    ):
        with pytest.raises(ConfigError, match=says):
            attempt(small_config("gpt2", pattern=pattern, d_model=16, n_head=2, d_bottleneck=8))


def test_a_name_of_weights_is_a_word() -> None:
    with pytest.raises(ConfigError, match=r"'share' in .* takes a word"):
        make("gpt2", "s[share=3]")


# Padding


@pytest.mark.parametrize(
    ("family", "pattern"),
    [
        (family, pattern)
        for family in ("transformer-xl", "gpt2", "bert", "llama")
        for pattern in (
            *("sf", "lf", "{s<sf>}x2", "(sf)x2 | (scf)x2", "(lf)x2 | (lcf)x2"),
            "yy[random+vanilla]",
        )
        if family in CAUSAL or "|" not in pattern
    ],
)
def test_what_is_no_token_makes_no_difference(family: str, pattern: str) -> None:
    """Any tokens under the padding give the same answers elsewhere, outputs and gradients."""
    model = make(family, pattern)
    present = torch.ones(2, TIME, dtype=torch.bool)
    present[1, :4] = False  # before the text
    source, source_present = source_for(model), None
    if source is not None:
        source_present = torch.tensor([[True] * 5, [True] * 3 + [False] * 2])
    answers = []
    for other in (0, 1):
        tokens = torch.where(present, text(), (text(seed=other) + other) % VOCAB)
        given = source
        if source is not None and source_present is not None:
            given = torch.where(source_present, source, text(5, seed=other))
        model.zero_grad()
        out = model(tokens, padding=present, source=given, source_padding=source_present)
        probe = noise(*out.logits.shape)
        (out.logits[present] * probe[present]).sum().backward()
        gradient = torch.cat([p.grad.flatten() for p in model.blocks.parameters()])
        answers.append((out.logits[present], gradient))
    assert_close(answers[0], answers[1])
    if model.config.causal and model.encoder is None:
        whole = model(text(), padding=present).logits
        first = model(text()[:, :6], padding=present[:, :6])
        second = model(text()[:, 6:], first.state)
        pieces = torch.cat((first.logits, second.logits), dim=1)
        assert_close(pieces[present], whole[present])


def test_relative_attention_sees_both_sides() -> None:
    """Against scores that are written out place by place."""
    model = make("transformer-xl", "s", causal=False, mem_len=0)
    block, x_btd = model.blocks[0], noise(1, 5, 16)
    y_btd, _ = block(x_btd, None, context_of(model, 1))
    q, k, v = block.qkv(x_btd)[0].split([16, 16, 16], dim=-1)
    table = sinusoids(5, 16, -1, ahead=4).double()  # distances 4 … −4
    r = block.distance(table)
    out = []
    for t in range(5):
        heads = []
        for h in range(2):
            part = slice(8 * h, 8 * h + 8)
            u, w = model.content_bias[part], model.position_bias[part]
            scores = torch.stack(
                [
                    ((q[t, part] + u) @ k[j, part] + (q[t, part] + w) @ r[4 - (t - j), part])
                    / 8**0.5
                    for j in range(5)
                ]
            )
            heads.append(scores.softmax(0) @ v[:, part])
        out.append(torch.cat(heads))
    wanted = block.norm(x_btd + block.out(torch.stack(out))[None])
    assert_close(y_btd, wanted)


# States are trees


@any_family
@any_pattern
def test_rows_of_a_state_are_the_pasts_of_those_rows(family: str, pattern: str) -> None:
    model = make(family, pattern)
    tokens, order = text(batch=3), torch.tensor([2, 0, 0])
    with torch.no_grad():
        _, state = run(model, tokens, [5, 4])
        whole = model(text(2, batch=3, seed=4), state).logits
        picked = model(text(2, batch=3, seed=4)[order], state.rows(order)).logits
        assert_close(picked, whole[order])
        parts = [state.rows(torch.tensor([i])) for i in range(3)]
        assert_close(model(text(2, batch=3, seed=4), State.join(parts)).logits, whole)


def test_states_that_do_not_agree_are_not_joined() -> None:
    model = make("gpt2", "sf")
    with torch.no_grad():
        short, long = model(text(3)).state, model(text(4)).state
    with pytest.raises(InputError, match="after 4 tokens cannot be joined with one after 3"):
        State.join([short, long])


@any_family
@any_pattern
def test_torch_takes_a_state_apart_and_puts_it_together(family: str, pattern: str) -> None:
    model = make(family, pattern)
    with torch.no_grad():
        _, state = run(model, text(), [5, 4])
        leaves, tree = torch.utils._pytree.tree_flatten(state)
        assert all(isinstance(leaf, Tensor) for leaf in leaves if leaf is not None)
        copies = [None if leaf is None else leaf.clone() for leaf in leaves]
        again = torch.utils._pytree.tree_unflatten(copies, tree)
        assert_close(model(text(2), again).logits, model(text(2), state).logits)


class Step(nn.Module):
    """A step of a model, from tensors to tensors."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        out = self.model(tokens, state)
        return out.logits, out.state


@any_family
@pytest.mark.parametrize("pattern", ["s", "f", "i", "r", "a", "n", "y", "l", *PATTERNS.values()])
def test_an_exported_step_gives_what_the_model_gives(family: str, pattern: str) -> None:
    model = make(family, pattern, torch.float32)
    with torch.no_grad():
        _, state = run(model, text(), [5, 4])
        exported = torch.export.export(Step(model), (text(2), state)).module()
        ours, after = exported(text(2, seed=4), state)
        out = model(text(2, seed=4), state)
        assert_close(ours, out.logits)
        later = model(text(1), after).logits
        assert_close(later, model(text(1), out.state).logits)


# Linear is the only door


class Doubled(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return 2 * weight


class Rounded(nn.Module):
    """A linear map of whole numbers between −127 and 127, as compression might put it there."""

    def __init__(self, like: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = like.in_features, like.out_features
        scale = like.weight.detach().abs().amax() / 127
        self.register_buffer("scale", scale)
        self.register_buffer("whole", (like.weight.detach() / scale).round().to(torch.int8))
        self.bias = None if like.bias is None else nn.Parameter(like.bias.detach().clone())

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self.whole.to(x.dtype) * self.scale, self.bias)


def linears(model: Model) -> Iterator[tuple[nn.Module, str, Linear]]:
    """Every linear map of blocks and head, with the module that holds it."""
    for parent in model.modules():
        for name, child in parent.named_children():
            if isinstance(child, Linear):
                yield parent, name, child


def replace_all(model: Model) -> Model:
    for parent, name, linear in list(linears(model)):
        setattr(parent, name, Rounded(linear))
    return model


def answers(model: Model) -> list[Tensor]:
    """In training with a memory, its gradient with respect to the stream, and in inference."""
    model.train()
    first = model(text(4), source=source_for(model))
    second = model(text(5), first.state, targets=text(5, seed=3), source=source_for(model))
    (gradient,) = torch.autograd.grad(second.loss, [model.embedding.words.tables[0]])
    model.eval()
    with torch.no_grad():
        return [second.loss.detach(), gradient, run(model, text(), [4, 5])[0]]


@any_family
@pytest.mark.parametrize(
    "pattern",
    ["sfral", "y[dense+vanilla]y[dense,released]y[factored-dense]", "{sf}x2 <sf>", "sf | scf"],
)
@pytest.mark.parametrize("way", ["prune", "parametrize", "hook", "replace"])
def test_whatever_is_done_to_a_linear_map_shows(family: str, pattern: str, way: str) -> None:
    model = make(family, pattern)
    before = answers(model)
    twin = make(family, pattern)
    for parent, name, linear in list(linears(twin)):
        weight = linear.weight
        if way == "prune":
            mask = (noise(*weight.shape, seed=2) > 0).to(weight.dtype)
            tied = weight is twin.embedding.words.tables[0]
            if not tied:
                weight.data.mul_(mask)
                prune.custom_from_mask(by_name(model, twin, parent, name), "weight", mask)
        elif way == "parametrize":
            if weight is not twin.embedding.words.tables[0]:
                weight.data.mul_(2)
                map_ = by_name(model, twin, parent, name)
                parametrize.register_parametrization(map_, "weight", Doubled())
        elif way == "hook":
            map_ = by_name(model, twin, parent, name)
            map_.register_forward_hook(lambda module, inputs, output: 2 * output)
            linear.register_forward_hook(lambda module, inputs, output: output + output)
        else:
            rounded = Rounded(linear)
            setattr(parent, name, Plain(rounded))
    if way == "replace":
        replace_all(model)
    after, wanted = answers(model), answers(twin)
    for ours, theirs in zip(after, wanted, strict=True):
        assert_close(ours, theirs)
    assert not torch.allclose(before[0], after[0])


class Plain(nn.Module):
    """A rounded map as an ordinary one."""

    def __init__(self, rounded: Rounded) -> None:
        super().__init__()
        self.inner = nn.Linear(rounded.in_features, rounded.out_features).double()
        self.inner.weight.data.copy_(rounded.whole.double() * rounded.scale)
        self.inner.bias = rounded.bias

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)


def by_name(model: Model, twin: Model, parent: nn.Module, name: str) -> nn.Module:
    """The map of one model that stands where this one stands in its twin."""
    prefix = next(n for n, module in twin.named_modules() if module is parent)
    return model.get_submodule(f"{prefix}.{name}" if prefix else name)


@any_pattern
def test_buffers_and_small_numbers_are_saved_and_loaded(pattern: str, tmp_path: Path) -> None:
    model = replace_all(make("gpt2", pattern, torch.float32))
    model.save(tmp_path / "model")
    kept = read_tensors(tmp_path / "model" / "model.safetensors")
    assert torch.int8 in {tensor.dtype for tensor in kept.values()}
    again = refill(replace_all(make("gpt2", pattern, torch.float32)), kept)
    assert named_tensors(again).keys() == named_tensors(model).keys()
    with torch.no_grad():
        assert_close(run(again, text(), [TIME])[0], run(model, text(), [TIME])[0])


def test_cross_attention_asks_nothing_of_the_decoders_positions() -> None:
    """Equal lengths and odd heads are rules of self-attention."""
    model = make("transformer-xl", "s | sc[heads=3,head=5]", same_length=True)
    assert count(model) == pf.cost(model.config).parameters
    with torch.no_grad():
        assert_close(run(model, text(), [4, 5])[0], run(model, text(), [TIME])[0])


def test_a_state_of_a_group_is_recalled_by_its_block() -> None:
    model = make("transformer-xl", "{s<sf>}x2").train()
    state = model(text()).state
    (group,) = model.blocks
    parts = state.blocks[0].tensors()
    assert sorted(parts) == [
        "0.inputs_bmd",
        "1.0.inputs_bmd",
        "2.inputs_bmd",
        "3.0.inputs_bmd",
    ]
    again = group.recall({name: tensor.clone() for name, tensor in parts.items()})
    assert isinstance(again, BlockState)
    assert_close(again.tensors(), parts)
