"""The compiled recurrence computes what its definition says: outputs and gradients."""

# b batch, t time, k projections, d width, g gates

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from parformer.errors import InputError
from parformer.kernels import extension, steps
from parformer.kernels import recurrence as module
from parformer.kernels.recurrence import BLOCK, CHANNELS, recurrence
from parformer.kernels.steps import step_by_step
from tests.conftest import noise

needs_compiler = pytest.mark.skipif(not extension.find_compilers(), reason="needs a C++ compiler")

SHAPES = [
    (1, 1, 1),
    (2, 3, 5),
    (3, BLOCK, 16),
    (1, BLOCK + 1, 17),
    (2, 2 * BLOCK, 33),
    (5, 3 * BLOCK - 1, 64),
    (1, 100, 7),
    (1, 2, CHANNELS + 9),
]


class Given(NamedTuple):
    """What goes into a recurrence."""

    u_btkd: Tensor
    x_btd: Tensor | None
    weight_gd: Tensor
    bias_gd: Tensor
    cell_bd: Tensor | None
    mask_bd: Tensor | None
    scale: float

    def wanted(self) -> list[Tensor]:
        return [x for x in self[:5] if x is not None]

    def to(self, *types: torch.dtype) -> Given:
        """Copies of their own: u, x and all else in these types."""
        kinds = (types[0], types[1], *(types[2],) * 4)
        copies = [
            None if x is None else x.detach().to(kind, copy=True)
            for x, kind in zip(self[:6], kinds, strict=True)
        ]
        for x in copies[:5]:
            if x is not None:
                x.requires_grad_()
        return Given(*copies, self.scale)  # type: ignore[arg-type]


def given(
    batch: int, time: int, width: int, dtype: torch.dtype = torch.float64, *, full: bool = True
) -> Given:
    """With all that is optional, or with none of it."""
    u, x = noise(batch, time, 3 if full else 4, width), noise(batch, time, width, seed=1)
    gates = noise(2, width, seed=2), noise(2, width, seed=3)
    if not full:
        return Given(u, None, *gates, None, None, 1.0).to(dtype, dtype, dtype)
    mask = (noise(batch, width, seed=5) > 0) / 0.5
    return Given(u, x, *gates, noise(batch, width, seed=4), mask, 1.3).to(dtype, dtype, dtype)


def run_fused(inputs: Given) -> tuple[Tensor, Tensor]:
    *tensors, mask, scale = inputs
    return recurrence(*tensors, mask_bd=mask, scale=scale)


def run_steps(inputs: Given) -> tuple[Tensor, Tensor]:
    return step_by_step(*inputs)


def results(run: Any, inputs: Given, *types: torch.dtype) -> list[Tensor]:
    """Outputs and all gradients, when every output matters in its own way.

    What comes back to the outputs is rounded to their types, or to those that are given.
    """
    outputs = run(inputs)
    kinds = types or tuple(y.dtype for y in outputs)
    grads = [
        noise(*y.shape, dtype=kind, seed=i + 6).to(y.dtype)
        for i, (y, kind) in enumerate(zip(outputs, kinds, strict=True))
    ]
    gradients = torch.autograd.grad(outputs, inputs.wanted(), grads)
    return [*(y.detach() for y in outputs), *gradients]


def assert_near(mine: list[Tensor], exact: list[Tensor], error: float) -> None:
    """Within an error relative to the largest number of each tensor."""
    assert len(mine) == len(exact)
    for a, b in zip(mine, exact, strict=True):
        most = b.abs().max().item() if b.numel() else 0.0
        torch.testing.assert_close(a.double(), b.double(), rtol=0, atol=error * most)


@pytest.fixture
def threads() -> Iterator[Any]:
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@needs_compiler
def test_the_compiled_way_is_the_usual_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "step_by_step", None)
    results(run_fused, given(2, 3, 4))


@needs_compiler
@pytest.mark.parametrize("full", [True, False], ids=["full", "bare"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(("dtype", "error"), [(torch.float64, 1e-13), (torch.float32, 5e-6)])
def test_outputs_and_gradients(
    shape: tuple[int, int, int], full: bool, dtype: torch.dtype, error: float
) -> None:
    inputs = given(*shape, dtype, full=full)
    mine = results(run_fused, inputs)
    assert {x.dtype for x in mine} == {dtype}
    exact = results(run_steps, inputs.to(*(torch.float64,) * 3), dtype, dtype)
    assert_near(mine, exact, error)


@needs_compiler
@pytest.mark.parametrize("full", [True, False], ids=["full", "bare"])
def test_the_gradient_is_the_slope_and_has_one_itself(full: bool) -> None:
    inputs = given(2, BLOCK + 2, 2, full=full)
    *_, mask, scale = inputs

    def run(*tensors: Tensor) -> tuple[Tensor, Tensor]:
        u, x, *others = tensors if full else (tensors[0], None, *tensors[1:])
        return recurrence(u, x, *others, mask_bd=mask, scale=scale)  # type: ignore[arg-type]

    assert torch.autograd.gradcheck(run, inputs.wanted())
    assert torch.autograd.gradgradcheck(run, inputs.wanted(), fast_mode=True)


@needs_compiler
def test_one_of_the_outputs_is_enough() -> None:
    inputs = given(2, 11, 5)
    for index in (0, 1):
        weights = noise(*run_fused(inputs)[index].shape)
        found = [
            torch.autograd.grad((run(inputs)[index] * weights).sum(), inputs.wanted(), **options)
            for run, options in ((run_fused, {}), (run_steps, {"materialize_grads": True}))
        ]
        assert_near(list(found[0]), list(found[1]), 1e-13)


@needs_compiler
def test_a_fourth_projection_is_the_skip() -> None:
    inputs = given(2, 9, 5, full=False)
    u = inputs.u_btkd.detach()
    apart = inputs._replace(u_btkd=u[:, :, :3], x_btd=u[:, :, 3])
    for mine, theirs in zip(run_fused(inputs), run_fused(apart), strict=True):
        assert torch.equal(mine, theirs)


@needs_compiler
def test_a_sigmoid_is_right_to_the_last_bits() -> None:
    # a cell of one that forgets in favour of nought is the gate itself
    x = torch.cat((torch.linspace(-86, 88, 20_001), torch.tensor([-1e-30, 0.0, 1e30, -1e30])))
    u = torch.zeros(1, 1, 3, len(x))
    u[0, 0, 1] = x
    gates = torch.zeros(2, len(x))
    _, cell = recurrence(u, torch.zeros(1, 1, len(x)), gates, gates, torch.ones(1, len(x)))
    exact = torch.sigmoid(x.double())
    torch.testing.assert_close(cell[0, :-1].double(), exact[:-1], rtol=4e-7, atol=0)
    assert 0 <= cell[0, -1] < 1e-37


@needs_compiler
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_is_no_number_stays_in_its_channel(bad: float) -> None:
    inputs = given(2, 5, 40, torch.float32)
    with torch.no_grad():
        inputs.u_btkd[1, 2, 0, 33] = bad
    h, cell = run_fused(inputs)
    broken = ~torch.isfinite(h)
    assert broken[1, 2:, 33].all()
    assert broken.sum() == 3
    assert (~torch.isfinite(cell)).nonzero().tolist() == [[1, 33]]


# Types


@needs_compiler
@pytest.mark.parametrize(
    ("types", "error"),
    [
        ((torch.bfloat16, torch.bfloat16, torch.bfloat16), 2**-8),
        ((torch.bfloat16, torch.bfloat16, torch.float32), 2**-8),
        ((torch.bfloat16, torch.float32, torch.float32), 2**-8),
        ((torch.float32, torch.bfloat16, torch.float32), 2**-8),
        ((torch.float16, torch.float16, torch.float32), 2**-11),
        ((torch.float64, torch.float32, torch.float32), 2**-22),
    ],
    ids=str,
)
@pytest.mark.parametrize("full", [True, False], ids=["full", "bare"])
def test_types(types: tuple[torch.dtype, ...], error: float, full: bool) -> None:
    inputs = given(2, 19, 21, full=full).to(*types)
    mine, plain = results(run_fused, inputs), results(run_steps, inputs)
    exact = results(run_steps, inputs.to(*(torch.float64,) * 3), *(x.dtype for x in mine[:2]))
    wide = torch.float64 if torch.float64 in types[: 1 + full] else torch.float32
    assert [x.dtype for x in mine[:2]] == [types[1] if full else types[0], wide]
    assert [x.dtype for x in mine[2:]] == [x.dtype for x in inputs.wanted()]
    assert [x.dtype for x in plain] == [x.dtype for x in mine]
    assert_near(mine, exact, error)
    # the cell is never rounded on its way
    torch.testing.assert_close(mine[1].double(), exact[1], rtol=0, atol=1e-5)


@needs_compiler
def test_bfloat16_is_rounded_to_the_nearest_even() -> None:
    # the reset gate is shut, so that what comes out is what is skipped to
    x = torch.cat((noise(500, dtype=torch.float32), torch.tensor([1e38, 1e-38, 1e-40, 0.0])))
    u = torch.zeros(1, 1, 3, len(x), dtype=torch.bfloat16)
    gates = torch.zeros(2, len(x)), torch.tensor([[0.0], [-200.0]]).expand(2, len(x))
    h, _ = recurrence(u, x.bfloat16()[None, None], *gates, scale=1.5)
    assert torch.equal(h[0, 0], (x.bfloat16().float() * 1.5).bfloat16())


@needs_compiler
def test_no_number_becomes_one_by_rounding() -> None:
    inputs = given(1, 1, 20).to(torch.bfloat16, torch.float32, torch.float32)
    every_bit_set = torch.full((1, 1, 20), 2**31 - 1, dtype=torch.int32).view(torch.float32)
    du, dx = torch.autograd.grad(run_fused(inputs)[0], inputs.wanted()[:2], every_bit_set)
    assert du.isnan().all()
    assert dx.isnan().all()


# Layouts


@needs_compiler
@pytest.mark.parametrize("count", [1, 2])
def test_gradients_that_fade_away_end_in_zero(
    count: int, threads: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Numbers below 1e-38 would take a hundred times as long; torch's own stay as they were."""
    monkeypatch.setattr(module, "GRAIN", 1)
    threads(count)
    u_btkd, x_btd = torch.zeros(2, 300, 3, 40), torch.zeros(2, 300, 40)
    u_btkd[:, :, 1] = -1.0
    u_btkd[:, :, 0] = 1.0
    u_btkd.requires_grad_()
    _, last_bd = recurrence(u_btkd, x_btd, torch.zeros(2, 40), torch.zeros(2, 40))
    (du_btkd,) = torch.autograd.grad(last_bd.sum(), u_btkd)
    smallest = torch.finfo(torch.float32).tiny
    assert du_btkd[:, -20:, 0].all()
    assert du_btkd[:, -90:, 0].abs().min() < 10 * smallest
    assert not ((du_btkd != 0) & (du_btkd.abs() < smallest)).any()
    assert (torch.full((9,), smallest) / 2).all()


@needs_compiler
@pytest.mark.parametrize("layout", ["time first", "interleaved", "slices", "expanded"])
def test_tensors_may_lie_as_they_like(layout: str) -> None:
    u, x, cell = noise(3, 10, 3, 12), noise(3, 10, 12, seed=1), noise(3, 12, seed=2)
    if layout == "expanded":
        u, x, cell = u[:, :1].expand_as(u), x[:1].expand_as(x), cell[:, :1].expand_as(cell)
        strange = u, x, cell
    elif layout == "time first":
        strange = u.transpose(0, 1).contiguous().transpose(0, 1), x.mT.contiguous().mT, cell
    elif layout == "interleaved":
        strange = u.mT.contiguous().mT, torch.stack((x, x), 3)[..., 0], cell.mT.contiguous().mT
    else:
        padded = torch.nn.functional.pad(u, (3, 5, 1, 1))
        strange = padded[:, :, 1:4, 3:15], torch.cat((x, x), 1)[:, :10], cell
    inputs = given(3, 10, 12)
    answers = []
    for tensors in (strange, [y.contiguous() for y in (u, x, cell)]):
        y_u, y_x, y_cell = (y.detach().requires_grad_() for y in tensors)
        answers.append(results(run_fused, inputs._replace(u_btkd=y_u, x_btd=y_x, cell_bd=y_cell)))
    assert all(map(torch.equal, *answers))


@needs_compiler
def test_gradients_may_lie_as_they_like() -> None:
    inputs = given(3, 10, 12)
    h, _ = run_fused(inputs)
    lying = noise(12, 10, 3).permute(2, 1, 0)
    for strange in (lying, noise(1, 1, 1).expand(3, 10, 12), noise(10, 3, 12).transpose(0, 1)):
        found = torch.autograd.grad(h, inputs.wanted(), strange, retain_graph=True)
        tidy = torch.autograd.grad(h, inputs.wanted(), strange.contiguous(), retain_graph=True)
        assert all(map(torch.equal, found, tidy))


@needs_compiler
@pytest.mark.parametrize("shape", [(2, 0, 5), (0, 4, 5), (2, 4, 0)], ids=str)
def test_nothing_in_nothing_out(shape: tuple[int, int, int]) -> None:
    inputs = given(*shape)
    h, cell, *gradients = results(run_fused, inputs)
    assert h.shape == shape
    assert inputs.cell_bd is not None
    if not shape[1]:
        assert torch.equal(cell, inputs.cell_bd)
        for run in (run_fused, run_steps):
            assert run(inputs)[1].data_ptr() != inputs.cell_bd.data_ptr()
        assert torch.equal(gradients[4], noise(*cell.shape, seed=7))
    assert [x.shape for x in gradients] == [x.shape for x in inputs.wanted()]
    assert not gradients[2].any()
    assert not gradients[3].any()
    assert_near([h, cell], list(run_steps(inputs)), 0)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("u", {"x_btd": None}),
        ("x", {"x_btd": noise(2, 3, 5)}),
        ("weight", {"weight_gd": noise(3, 4)}),
        ("bias", {"bias_gd": noise(8)}),
        ("cell", {"cell_bd": noise(1, 4)}),
        ("mask", {"mask_bd": noise(2, 3, 4)}),
    ],
)
def test_shapes_that_do_not_fit(name: str, change: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=rf"^{name} of a recurrence has shape \(.*\), not \(.*\)$"):
        run_fused(given(2, 3, 4)._replace(**change))


def test_devices_that_do_not_fit() -> None:
    with pytest.raises(InputError, match="cell of a recurrence is on meta, u on cpu"):
        run_fused(given(2, 3, 4)._replace(cell_bd=torch.zeros(2, 4, device="meta")))


def test_shapes_alone_can_be_computed(caplog: pytest.LogCaptureFixture) -> None:
    inputs = given(2, 3, 4)
    meta = [x.to("meta") if isinstance(x, Tensor) else x for x in inputs]
    h, cell = run_fused(Given(*meta))
    assert (h.shape, cell.shape, h.device.type) == ((2, 3, 4), (2, 4), "meta")
    assert not caplog.records


# The same bits


@needs_compiler
@pytest.mark.parametrize("shape", [(1, 21, 100), (3, 9, 50), (2, 4, 2 * CHANNELS + 5)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_threads_do_not_change_a_bit(
    shape: tuple[int, int, int], dtype: torch.dtype, threads: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "GRAIN", 1)
    inputs = given(*shape, dtype)
    threads(1)
    alone = results(run_fused, inputs)
    for count in (1, 2, 3, 7):
        threads(count)
        assert all(map(torch.equal, alone, results(run_fused, inputs)))


@needs_compiler
def test_a_channel_does_not_feel_its_neighbours() -> None:
    inputs = given(3, 20, 83, torch.float32)
    h, cell, du, dx, *_ = results(run_fused, inputs)
    for width in (1, 7, 16, 40):
        few = Given(
            *(x[..., 3 : 3 + width] for x in inputs[:6] if isinstance(x, Tensor)), inputs.scale
        )
        alone_h, alone_cell = run_fused(few)
        assert torch.equal(alone_h, h[..., 3 : 3 + width])
        assert torch.equal(alone_cell, cell[..., 3 : 3 + width])
        grads = (noise(*h.shape, dtype=h.dtype, seed=6), noise(*cell.shape, dtype=h.dtype, seed=7))
        part = torch.autograd.grad(
            (alone_h, alone_cell), few[:2], [g[..., 3 : 3 + width] for g in grads]
        )
        assert torch.equal(part[0], du[..., 3 : 3 + width])
        assert torch.equal(part[1], dx[..., 3 : 3 + width])


@needs_compiler
def test_pieces_with_the_cell_carried_are_the_whole() -> None:
    inputs = given(2, 30, 9, torch.float32)
    h, cell = run_fused(inputs)
    pieces, carried = [], inputs.cell_bd
    for u, x in zip(
        inputs.u_btkd.split([1, 7, 22], 1), inputs[1].split([1, 7, 22], 1), strict=True
    ):
        piece, carried = run_fused(inputs._replace(u_btkd=u, x_btd=x, cell_bd=carried))
        pieces.append(piece)
    assert torch.equal(torch.cat(pieces, 1), h)
    assert carried is not None
    assert torch.equal(carried, cell)


# torch.compile


@needs_compiler
@pytest.mark.parametrize("full", [True, False], ids=["full", "bare"])
def test_it_compiles_into_one_graph(full: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = given(2, 11, 6, torch.float32, full=full)
    expected = results(run_fused, inputs)
    monkeypatch.setattr(module, "step_by_step", None)
    compiled = torch.compile(run_fused, fullgraph=True, backend="aot_eager")
    assert all(map(torch.equal, expected, results(compiled, inputs)))


@needs_compiler
@pytest.mark.parametrize("full", [True, False], ids=["full", "bare"])
@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16], ids=str)
def test_the_operators_are_what_they_say(full: bool, kind: torch.dtype) -> None:
    inputs = given(2, 11, 6, full=full).to(kind, torch.float32, torch.float32)
    torch.library.opcheck(torch.ops.parformer.recurrence.default, tuple(inputs))
    u, x, weight, bias, _, mask, scale = (
        y.detach() if isinstance(y, Tensor) else y for y in inputs
    )
    h, last, starts = module.run(*(y.detach() if isinstance(y, Tensor) else y for y in inputs))
    arguments = (h, last, starts, u, x, weight, bias, mask, scale)
    torch.library.opcheck(torch.ops.parformer.recurrence_gradient.default, arguments)
    torch.library.opcheck(
        torch.ops.parformer.recurrence_gradient.default, (None, None, *arguments[2:])
    )


# No kernel


@pytest.fixture
def no_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setenv("PARFORMER_CACHE", str(tmp_path))
    monkeypatch.setattr(extension, "find_compilers", list)
    module.library.cache_clear()
    module.warn_of_steps.cache_clear()
    yield
    module.library.cache_clear()
    module.warn_of_steps.cache_clear()


def test_without_a_compiler_it_runs_step_by_step_and_says_so_once(
    no_compiler: None, caplog: pytest.LogCaptureFixture
) -> None:
    inputs = given(2, 9, 5)
    with caplog.at_level(logging.WARNING):
        mine = results(run_fused, inputs)
        results(run_fused, inputs)
    assert all(map(torch.equal, mine, results(run_steps, inputs)))
    (record,) = caplog.records
    assert "runs step by step, about " in record.getMessage()
    assert " times slower here than compiled: there is no C++ compiler" in record.getMessage()
    assert "install one of g++" in record.getMessage()
    times = float(record.getMessage().partition("about ")[2].split()[0])
    assert 2 < times < 200


def test_how_slow_steps_are_does_not_depend_on_who_else_is_busy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Time on the wall that others use up does not count, time of this thread does."""
    spent = iter([0.0, 8.0] * 6 + [0.0, 0.5] * 6)
    monkeypatch.setattr(steps.time, "thread_time", lambda: next(spent))
    monkeypatch.setattr(steps.time, "perf_counter", None)
    assert steps.measure_steps() == 16


def test_without_a_compiler_a_mask_has_no_gradient_either(no_compiler: None) -> None:
    inputs = given(2, 3, 4)
    assert inputs.mask_bd is not None
    h, _ = run_fused(inputs._replace(mask_bd=inputs.mask_bd.requires_grad_()))
    h.sum().backward()
    assert inputs.mask_bd.grad is None


def test_other_devices_are_named(caplog: pytest.LogCaptureFixture, no_compiler: None) -> None:
    assert not module.has_kernel("cuda")
    assert not module.has_kernel("cuda")
    (record,) = caplog.records
    assert record.getMessage() == (
        "on cuda the recurrence runs step by step: there is no kernel for such a device yet"
    )


def test_the_definition() -> None:
    """Written out in numbers for one channel and two steps."""
    u = torch.tensor([[[[2.0], [0.5], [-1.0]], [[-3.0], [1.0], [0.25]]]], dtype=torch.float64)
    x = torch.tensor([[[0.7], [-0.2]]], dtype=torch.float64)
    weight = torch.tensor([[0.3], [-0.6]], dtype=torch.float64)
    bias = torch.tensor([[0.1], [0.2]], dtype=torch.float64)
    cell, mask = torch.tensor([[1.5]]).double(), torch.tensor([[2.0]]).double()

    def sigmoid(value: float) -> float:
        return float(1 / (1 + torch.exp(torch.tensor(-value, dtype=torch.float64))))

    expected, c = [], 1.5
    for candidate, forget, reset, skip in ((2.0, 0.5, -1.0, 0.7), (-3.0, 1.0, 0.25, -0.2)):
        f, r = sigmoid(forget + 0.3 * c + 0.1), 2 * sigmoid(reset - 0.6 * c + 0.2)
        c = f * c + (1 - f) * candidate
        expected.append(r * c + (1 - r) * skip * 0.9)
    for run in (run_fused, run_steps):
        h, last = run(Given(u, x, weight, bias, cell, mask, 0.9))
        torch.testing.assert_close(h.flatten(), torch.tensor(expected, dtype=torch.float64))
        torch.testing.assert_close(last.item(), c)
