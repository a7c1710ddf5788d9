"""Does a model say the same in C++ as in torch, whatever its blocks, sizes and past?"""

# b batch, t time, v vocabulary

from __future__ import annotations

from random import Random
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from parformer.blocks import BLOCKS
from parformer.config import FAMILIES
from parformer.errors import InputError
from parformer.kernels import extension
from parformer.model import Model, build
from parformer.native import Decoder, NoForm
from parformer.native.program import NotMeant
from parformer.state import State, side_by_side
from tests.conftest import lively, small_config, small_model

pytestmark = pytest.mark.skipif(not extension.find_compilers(), reason="needs a C++ compiler")

CAUSAL = [family for family, usual in FAMILIES.items() if usual["causal"]]
LETTERS = sorted({*BLOCKS} - {"c"})


def make(family: str, pattern: str, **changes: Any) -> Model:
    if family in ("transformer-xl", "sru"):
        changes = {"mem_len": 9} | changes
    return small_model(family, pattern, torch.float32, **changes)


def some_tokens(batch: int, time: int, size: int = 13, seed: int = 0) -> Tensor:
    return torch.randint(size, (batch, time), generator=torch.Generator().manual_seed(seed))


def both(
    model: Model,
    *,
    batch: int = 1,
    prompt: int = 5,
    steps: list[int] | None = None,
    memory: int | None = None,
    level: str = "",
    threads: int = 1,
) -> tuple[list[Tensor], list[Tensor], Decoder, State]:
    """Logits of the same tokens in C++ and in torch, step by step, after a prompt in torch."""
    steps = [1] * 14 if steps is None else steps
    size = model.config.vocab_size
    ours, twins = [], []
    with torch.inference_mode():
        state = model.initial_state(batch, memory)
        decoder = model.native(
            batch=batch, time=max(steps), memory=state.memory, level=level, threads=threads
        )
        if prompt:
            out = model(some_tokens(batch, prompt, size), state)
            assert out.state is not None
            state = out.state
            decoder.load(state)
        for number, time in enumerate(steps):
            tokens = some_tokens(batch, time, size, seed=number + 1)
            ours.append(decoder.step(tokens).clone())
            out = model(tokens, state)
            assert out.state is not None
            assert out.logits is not None
            state = out.state
            twins.append(out.logits[:, -1])
    return ours, twins, decoder, state


def check(model: Model, *, near: float = 1e-4, **more: Any) -> None:
    ours, twins, decoder, state = both(model, **more)
    for one, twin in zip(ours, twins, strict=True):
        assert_close(one, twin, atol=near, rtol=near)
    check_state(model, decoder, state, near)


def check_state(model: Model, decoder: Decoder, state: State, near: float = 1e-4) -> None:
    """What the decoder remembers is what the ordinary steps do."""
    again = decoder.state()
    assert (again.batch, again.position, again.memory) == (
        *(state.batch, state.position, state.memory),
    )
    if model.config.numbered and state.position == model.config.max_len:
        return
    tokens = some_tokens(state.batch, 2, model.config.vocab_size, seed=99)
    with torch.inference_mode():
        one, two = model(tokens, again), model(tokens, state)
    assert_close(one.logits, two.logits, atol=near, rtol=near)


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("family", CAUSAL)
@pytest.mark.parametrize("letter", LETTERS)
def test_every_block_in_every_family(letter: str, family: str, norm: str, batch: int) -> None:
    check(make(family, f"{letter}f{letter}", norm=norm), batch=batch)


PATTERNS = [
    ("llama", "(sf)x3", {"n_kv_head": 1}),
    ("llama", "s[heads=3,kv_heads=1,head=6]f[inner=7]s[heads=1,head=2]", {}),
    ("gpt2", "{sf}x3 f", {}),
    ("gpt2", "s[share=a]f s[share=a]f[share=b]f[share=b]", {}),
    ("gpt2", "<sff>x2", {"d_bottleneck": 6, "n_head": 3}),
    ("gpt2", "<sf>[feed=shared,width=6]f<sf>[feed=outside,width=9]", {}),
    ("gpt2", "<sf>[feed=inside,width=6]", {"norm": "post", "norm_type": "affine"}),
    ("transformer-xl", "<sf>[width=6] {sf}x2", {"position_bias": "per-layer", "n_head": 1}),
    ("transformer-xl", "sf", {"clamp_len": 4}),
    ("transformer-xl", "sfsf", {"same_length": True}),
    ("transformer-xl", "sf", {"cutoffs": (4, 9), "div_val": 2, "embedding": "adaptive"}),
    ("transformer-xl", "sf", {"cutoffs": (5,), "embedding": "adaptive", "tie_weights": False}),
    ("transformer-xl", "sf", {"embedding": "factorized", "d_embed": 5}),
    (
        "transformer-xl",
        "sf",
        {"embedding": "factorized", "d_embed": 5, "tie_projections": "all", "norm_type": "rms"},
    ),
    ("gpt2", "sf", {"embedding": "factorized", "d_embed": 6, "narrow_positions": True}),
    ("gpt2", "sf", {"token_types": 2, "embedding_norm": True, "output_bias": True}),
    ("gpt2", "f", {"activation": "relu"}),
    ("gpt2", "f", {"activation": "silu", "gated": True}),
    ("gpt2", "f", {"activation": "gelu", "gated": True}),
    ("sru", "ra[heads=2,width=6]a[norm=pre,qkv]r[full]a[norm=off]r[norm=off]", {}),
    ("sru", "ara", {"same_length": True}),
    ("gpt2", "n[to=3]sn[from=3,to=5,rows=7,width=12]f", {}),
    ("gpt2", "n[rows=400,width=5]f", {}),
    ("lite", "l[light]l[attend=0]l[branches=attend4h2+dynamic5h1k2i3+light3h3k1]", {"n_head": 3}),
    ("transformer-xl", "l[kernel=3]f", {"n_head": 3}),
    ("gpt2", "y[dense]y[random]y[fixed]", {}),
    ("gpt2", "y[factored-dense]y[factored-random]", {}),
    ("gpt2", "y[random+vanilla,alpha]y[dense+factored-random+vanilla,alpha]", {}),
    ("gpt2", "y[dense,released]y[factored-dense,released]y[factored-random,released]", {}),
    ("gpt2", "y[dense+vanilla,released,heads=1]y[random,bare]f", {}),
    ("llama", "y[dense,length=6]y[random+vanilla,length=5]", {"tgt_len": 5}),
    ("gpt2", "sf", {"recall": 6}),
    ("gpt2", "sf", {"counts": 2000}),
    ("transformer", "sf", {"pad": 3}),
]


@pytest.mark.parametrize(("family", "pattern", "changes"), PATTERNS, ids=str)
@pytest.mark.parametrize("batch", [1, 3])
def test_options_groups_and_ends(
    family: str, pattern: str, changes: dict[str, Any], batch: int
) -> None:
    check(make(family, pattern, **changes), batch=batch)


@pytest.mark.parametrize("family", CAUSAL)
@pytest.mark.parametrize("steps", [[3, 1, 2], [1, 4, 4, 4, 1]], ids=str)
def test_a_few_tokens_at_once(family: str, steps: list[int]) -> None:
    model = make(family, "sfrnyla")
    check(model, batch=2, steps=steps, prompt=0)
    check(model, batch=2, steps=steps, prompt=3)


@pytest.mark.parametrize("memory", [0, 1, 3, 70])
@pytest.mark.parametrize("family", ["transformer-xl", "sru", "llama"])
def test_any_memory(family: str, memory: int) -> None:
    check(make(family, "sfa"), memory=memory, steps=[1] * 90)
    check(make(family, "sfa"), memory=memory, steps=[1] * 9, prompt=0, batch=2)


def test_counts_and_repeats_of_a_text_that_was_counted() -> None:
    model = lively(
        build(small_config("gpt2", counts=3000, recall=8, pattern="sf"), dtype=torch.float32)
    )
    assert model.prior is not None
    text = some_tokens(1, 3000).numpy()[0] % 5
    model.prior.learn(text, fresh=True)
    check(model, batch=3, steps=[1] * 30)


SIZES = [(1, 1, 1), (5, 5, 3), (17, 1, 31), (34, 2, 33), (66, 3, 129), (130, 2, 65)]


@pytest.mark.parametrize("batch", [1, 2, 5, 32])
@pytest.mark.parametrize(("width", "heads", "inner"), SIZES)
def test_odd_sizes(width: int, heads: int, inner: int, batch: int) -> None:
    for family in ("gpt2", "sru"):
        changes = {"d_model": width, "n_head": heads, "d_inner": inner, "vocab_size": 71}
        config = small_config(family, pattern="sfar", mem_len=20 * (family == "sru"), **changes)
        model = build(config)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.normal_(0.0, parameter.shape[-1] ** -0.5)
        check(model, batch=batch, steps=[1] * 4)


LEVELS = ["best", "avx2", "portable"]


@pytest.mark.parametrize("level", LEVELS)
def test_every_kind_of_instructions(level: str) -> None:
    if level != "best" and "avx2" not in extension.describe_cpu():
        pytest.skip("another kind of CPU")
    for family in ("llama", "transformer-xl", "gpt2"):
        check(make(family, "sfrlnya"), batch=3, level=level)


def test_two_threads_give_the_same_bits_as_one() -> None:
    config = small_config("llama", d_model=192, d_inner=700, n_head=3, pattern="sfsf")
    model = build(config)
    ours = [both(model, batch=2, threads=n)[0] for n in (1, 2, 3)]
    for one, two, three in zip(*ours, strict=True):
        assert torch.equal(one, two)
        assert torch.equal(one, three)


def test_rows_are_chosen_as_in_the_ordinary_state() -> None:
    for family, pattern in (("llama", "sfy"), ("sru", "ran"), ("lite", "lf")):
        model = make(family, pattern)
        with torch.inference_mode():
            state = model(some_tokens(3, 6)).state
            assert state is not None
            decoder = model.native(batch=5, memory=state.memory)
            decoder.load(state)
            for rows in ([2, 0, 0, 1], [3, 1], [1, 1, 0, 0, 1]):
                decoder.rows(rows)
                state = state.rows(torch.tensor(rows))
                tokens = some_tokens(len(rows), 1)
                out = model(tokens, state)
                state = out.state
                assert_close(decoder.step(tokens), out.logits[:, 0], atol=1e-4, rtol=1e-4)


def test_rows_in_circles_and_chains_are_chosen_as_in_the_ordinary_state() -> None:
    """Texts that stay, move on, go round, and leave some behind, as beams do."""
    model = make("llama", "sfs")
    generator = Random(0)
    orders = [[1, 2, 3, 0, 5, 4, 6], [0, 0, 1, 2, 4, 4, 3], [6, 5, 4, 3, 2, 1, 0], [1, 0, 2, 3, 4]]
    with torch.inference_mode():
        state = model(some_tokens(7, 5)).state
        assert state is not None
        decoder = model.native(batch=7, memory=state.memory)
        decoder.load(state)
        for number in range(40):
            if number < len(orders):
                rows = orders[number]
            else:
                count = generator.choice([4, 5, 6, 7])
                rows = [generator.randrange(decoder.batch) for _ in range(count)]
            decoder.rows(rows)
            state = state.rows(torch.tensor(rows))
            tokens = some_tokens(len(rows), 1, seed=number)
            out = model(tokens, state)
            state = out.state
            assert_close(decoder.step(tokens), out.logits[:, 0], atol=1e-4, rtol=1e-4)
        check_state(model, decoder, state)


@pytest.mark.parametrize(
    ("family", "pattern"), [("transformer", "sf | (scf)x2"), ("sru", "ar | a[source]ra[source]")]
)
def test_a_source_is_looked_at(family: str, pattern: str) -> None:
    model = small_model(family, pattern, torch.float32, pad=1)
    with torch.inference_mode():
        source = torch.tensor([[4, 5, 6, 7], [3, 9, 1, 1]])
        out = model(some_tokens(2, 1), model.initial_state(2, 16), source=source)
        decoder = model.native(batch=4, memory=out.state.memory)
        decoder.load(out.state)
        decoder.rows([1, 0, 1])
        state = out.state.rows(torch.tensor([1, 0, 1]))
        for number in range(5):
            tokens = some_tokens(3, 1, seed=number)
            out = model(tokens, state)
            state = out.state
            assert_close(decoder.step(tokens), out.logits[:, 0], atol=1e-4, rtol=1e-4)
        check_state(model, decoder, state)


# Refusals


def test_what_has_no_form_is_said() -> None:
    with pytest.raises(NotMeant, match="does not write"):
        small_model("bert", "sf", torch.float32).native()
    with pytest.raises(NotMeant, match="float64"):
        small_model("gpt2", "sf").native()
    with pytest.raises(NotMeant, match="161 texts"):
        make("gpt2", "sf").native(batch=161)
    model = build(small_config("gpt2"))
    model.blocks[0].register_forward_hook(lambda *_: None)
    with pytest.raises(NoForm, match="listens to block 's'"):
        model.native()


def test_bad_tokens_and_states_are_refused() -> None:
    model = make("gpt2", "sf")
    decoder = model.native(batch=2)
    for bad in ([[13], [0]], [[-1], [0]]):
        with pytest.raises(InputError, match="outside 0 … 12"):
            decoder.step(bad)
    for wrong in ([[1]], [[1], [1], [1]], [[1], [1, 2]], [[1, 2], [1, 2]], [[], []], []):
        with pytest.raises(InputError):
            decoder.step(wrong)
    for other in (make("llama", "sf").initial_state(2), model.initial_state(2, memory=3)):
        with pytest.raises(InputError):
            decoder.load(other)
    with pytest.raises(InputError, match="3 texts"):
        decoder.load(model.initial_state(3))
    for rows in ([2], [], [0, 1, 0], [-1]):
        with pytest.raises(InputError):
            decoder.rows(rows)
    txl = make("transformer-xl", "sf")
    with pytest.raises(InputError, match="InputMemory"):
        txl.native().load(txl.initial_state(1, zeros=True))


def test_a_full_window_is_refused() -> None:
    model = make("gpt2", "sf", max_len=4)
    decoder = model.native()
    for _ in range(4):
        assert not decoder.full
        decoder.step([[1]])
    assert decoder.full
    with pytest.raises(InputError, match="window of 4 is full"):
        decoder.step([[1]])


# Long trials


def random_case(random: Random) -> tuple[Model, int]:
    family = random.choice(CAUSAL)
    letters = [random.choice("sfranlyi") for _ in range(random.randint(1, 7))]
    pattern = "".join(letters)
    if random.random() < 0.3:
        pattern = f"{{{pattern}}}x2 <{random.choice('sfr')}f>[width=6]"
    changes: dict[str, Any] = {"norm": random.choice(["pre", "post"])}
    changes["norm_type"] = random.choice(["layer", "rms"])
    changes["gated"] = random.random() < 0.4
    changes["activation"] = random.choice(["relu", "gelu", "gelu-tanh", "silu"])
    if family == "transformer-xl":
        changes["position_bias"] = "per-layer"
    if family != "transformer-xl" and family != "sru":
        changes["max_len"] = 600
        pattern = pattern.replace("y", "y[length=600]")
    seed = random.randint(0, 10**6)
    model = build(small_config(family, pattern=pattern, n_head=1, **changes), seed=seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0.0, 0.5 * parameter.shape[-1] ** -0.5)
    return model, random.choice([1, 3, 32])


def greedy_both_ways(model: Model, batch: int, count: int) -> None:
    """The likeliest token again and again, by both; where two are as good as equal both may be."""
    tokens = some_tokens(batch, 3)
    with torch.inference_mode():
        memory = model.config.memory or 16
        out = model(tokens, model.initial_state(batch, memory))
        decoder = model.native(batch=batch, memory=memory)
        decoder.load(out.state)
        logits = out.logits[:, -1]
        for _ in range(count):
            best = logits.argmax(-1)
            out = model(best[:, None], out.state)
            ours, logits = decoder.step(best[:, None]), out.logits[:, 0]
            assert_close(ours, logits, atol=1e-4, rtol=1e-4)
            top = logits.topk(2).values
            clear = top[:, 0] - top[:, 1] > 1e-4
            assert torch.equal(ours.argmax(-1)[clear], logits.argmax(-1)[clear])


@pytest.mark.parametrize("seed", range(6))
def test_random_patterns_write_the_same(seed: int) -> None:
    model, batch = random_case(Random(seed))
    greedy_both_ways(model, batch, 25)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(50))
def test_random_patterns_write_the_same_for_500_tokens(seed: int) -> None:
    model, batch = random_case(Random(1000 + seed))
    greedy_both_ways(model, batch, 500)


BEGUN = (3, 7, 1)
"""Tokens that the texts of a ragged batch have read."""


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("family", CAUSAL)
@pytest.mark.parametrize("letter", [letter for letter in LETTERS if letter != "y"])
def test_texts_that_began_at_different_times(letter: str, family: str, norm: str) -> None:
    check_ragged(make(family, f"{letter}f{letter}", norm=norm))


@pytest.mark.parametrize(
    ("family", "pattern", "changes"),
    [
        ("llama", "sf", {"n_kv_head": 1, "recall": 16}),
        ("transformer-xl", "sfsf", {"same_length": True, "mem_len": 5}),
        ("sru", "ara", {"mem_len": 4}),
        ("gpt2", "sf", {"max_len": 24}),
    ],
)
def test_texts_that_began_at_different_times_with_more(
    family: str, pattern: str, changes: dict[str, Any]
) -> None:
    check_ragged(make(family, pattern, **changes))


def check_ragged(model: Model) -> None:
    """Each says what the ordinary step of all does, and what it says alone; rows may leave."""
    size, memory = model.config.vocab_size, model.config.memory or 9
    with torch.inference_mode():
        alone: list[State] = []
        for number, length in enumerate(BEGUN):
            tokens = some_tokens(1, length, size, seed=50 + number)
            out = model(tokens, model.initial_state(1, memory))
            assert out.state is not None
            alone.append(out.state)
        state = side_by_side(alone)
        decoder = model.native(batch=4, memory=memory, threads=1)
        decoder.load(state)
        for number in range(8):
            if number == 4:  # the longest one leaves
                decoder.rows([2, 0])
                alone = [alone[2], alone[0]]
                state = state.rows(torch.tensor([2, 0]))
            tokens = some_tokens(len(alone), 1, size, seed=number)
            ours = decoder.step(tokens).clone()
            out = model(tokens, state)
            singles = [model(tokens[n : n + 1], one) for n, one in enumerate(alone)]
            assert out.logits is not None
            assert_close(ours, out.logits[:, -1], atol=1e-4, rtol=1e-4)
            own = torch.cat([one.logits[:, -1] for one in singles if one.logits is not None])
            assert_close(ours, own, atol=1e-4, rtol=1e-4)
            alone = [one.state for one in singles if one.state is not None]
            assert out.state is not None
            state = out.state
        check_state(model, decoder, state)
        assert decoder.state().starts_b is not None


def test_places_absent_inside_a_text_are_refused() -> None:
    model = make("llama", "sf")
    tokens, present = some_tokens(2, 4), torch.tensor([[1, 1, 0, 1], [1, 1, 1, 1]]).bool()
    with torch.inference_mode():
        state = model(tokens, model.initial_state(2, 9), padding=present).state
    with pytest.raises(InputError, match="padding between its tokens"):
        model.native(batch=2, memory=9).load(state)
