"""Do the right weights go, and is a file without zeros the same model?"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import parformer as pf
from parformer.compress.coding import coded
from parformer.compress.pruning import masks_for, pruned, sparsity
from parformer.errors import ConfigError, FolderError
from parformer.model import Model
from parformer.store.folder import WEIGHTS, read_tensors
from parformer.store.sparse import with_zeros, without_zeros
from parformer.train.shape import smallest_gone
from parformer.weights import matrices


def trained_like(name: str = "llama-pocket") -> Model:
    """A model none of whose weights is zero."""
    model = pf.build(pf.preset(name), seed=1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.01 * torch.randn_like(parameter))
    return model


@given(st.integers(1, 200), st.floats(0, 1))
def test_so_many_go_and_none_that_stays_is_smaller(count: int, share: float) -> None:
    weight = torch.randn(count, generator=torch.Generator().manual_seed(count))
    stays = smallest_gone(weight, share)
    gone = round(share * count)
    assert int((~stays).sum()) == gone
    if 0 < gone < count:
        assert weight[~stays].abs().max() <= weight[stays].abs().min()


def test_every_matrix_loses_its_share_or_all_of_them_together() -> None:
    model = trained_like()
    each = masks_for(model, 0.7)
    for mask in each.values():
        assert float(mask.float().mean()) == pytest.approx(0.3, abs=0.001)
    together = masks_for(model, 0.7, together=True)
    shares = {name: float(mask.float().mean()) for name, mask in together.items()}
    assert max(shares.values()) - min(shares.values()) > 0.05
    kept = sum(int(mask.sum()) for mask in together.values())
    assert kept / sum(mask.numel() for mask in together.values()) == pytest.approx(0.3, abs=1e-3)


def test_norms_and_biases_stay() -> None:
    model = trained_like("gpt2-pocket")
    less = pruned(model, 0.9)
    small = {id(weight) for weight in matrices(less).values()}
    for name, parameter in less.named_parameters():
        if id(parameter) not in small:
            assert torch.equal(parameter, dict(model.named_parameters())[name])
    assert sparsity(less) == pytest.approx(0.9, abs=1e-3)
    assert sparsity(model) == 0


@pytest.mark.parametrize("bits", [0, 8])
def test_a_file_without_zeros_is_the_same_model(bits: int, tmp_path: Path) -> None:
    model = pruned(trained_like(), 0.9)
    model = coded(model, bits) if bits else model
    model.save(tmp_path / "whole")
    model.save(tmp_path / "sparse", sparse=True)
    again = pf.load(tmp_path / "sparse")
    tokens = torch.arange(12)[None]
    assert torch.equal(again(tokens).logits, model(tokens).logits)
    sizes = [(tmp_path / name / WEIGHTS).stat().st_size for name in ("whole", "sparse")]
    assert sizes[0] / sizes[1] > {0: 6.0, 8: 3.0}[bits]


@given(
    st.integers(0, 3),
    st.sampled_from([torch.float32, torch.bfloat16, torch.int8]),
    st.floats(0, 1),
)
def test_zeros_are_left_out_and_put_back(seed: int, kind: torch.dtype, share: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randint(-100, 100, (61, 97), generator=generator).to(kind)
    x[torch.rand(61, 97, generator=generator) < share] = 0
    again = with_zeros(without_zeros({"a.b": x, "small": torch.zeros(3)}))
    assert torch.equal(again["a.b"], x)
    assert again["a.b"].dtype == kind
    assert torch.equal(again["small"], torch.zeros(3))


def test_parts_that_do_not_fit_are_refused() -> None:
    kept = without_zeros({"w": torch.eye(100)})
    for name, bad in (
        ("w#values", kept["w#values"][:-1]),
        ("w#there", kept["w#there"][:-1]),
        ("w#shape", torch.tensor([-1, 100])),
        ("w#shape", torch.tensor([2**40, 2**40])),
    ):
        with pytest.raises(FolderError, match="'w'"):
            with_zeros(kept | {name: bad})
    with pytest.raises(FolderError, match="not all there"):
        with_zeros({"w#there": kept["w#there"]})


def test_what_was_quantized_is_not_pruned_after() -> None:
    with pytest.raises(ConfigError, match="prune first"):
        pruned(coded(trained_like(), 8), 0.5)


def test_plain_folders_hold_plain_tensors(tmp_path: Path) -> None:
    pf.build(pf.preset("pocket")).save(tmp_path / "model")
    assert not [name for name in read_tensors(tmp_path / "model" / WEIGHTS) if "#" in name]
