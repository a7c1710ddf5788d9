"""Is a model in few bits the model of the numbers that its codes stand for, wherever it goes?"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

import parformer as pf
from parformer.blocks.coded import CodedLinear, rounded_to
from parformer.compress.coding import coded, coded_maps, decoded, mean_bits
from parformer.compress.quantizers import Scheme, decode, encode
from parformer.errors import ConfigError, FolderError, InputError
from parformer.kernels.coded import multiply
from parformer.model import Model, build_from, reconfigure
from parformer.store.folder import WEIGHTS, read_tensors
from parformer.weights import matrices, named_tensors

PRESETS = (
    *("pocket", "llama-pocket", "gpt2-pocket", "srupp-pocket", "lite-pocket", "albert-pocket"),
    *("mobilebert-pocket", "synthesizer-pocket"),
)


def small(name: str) -> Model:
    return pf.build(pf.preset(name), seed=3)


def tokens_for(model: Model, time: int = 9) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(model.config.vocab_size, (2, time), generator=generator)


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("name", PRESETS)
def test_codes_give_what_their_numbers_give(name: str, bits: int) -> None:
    model = small(name)
    few = coded(model, bits)
    tokens = tokens_for(model)
    plain = build_from(model.config, dict(named_tensors(decoded(few))))
    torch.testing.assert_close(few(tokens).logits, plain(tokens).logits, atol=1e-4, rtol=1e-4)
    assert len(list(coded_maps(few))) >= len(matrices(model))
    assert not matrices(few)
    # what was given stays as it was
    assert not list(coded_maps(model))


@pytest.mark.parametrize("bits", [8, 4])
def test_saved_is_loaded_and_the_file_is_small(bits: int, tmp_path: Path) -> None:
    model = pf.build(pf.preset("llama-pocket", d_model=256, d_inner=640))
    few = coded(model, bits)
    model.save(tmp_path / "plain")
    few.save(tmp_path / "few")
    again = pf.load(tmp_path / "few")
    tokens = tokens_for(model)
    assert torch.equal(again(tokens).logits, few(tokens).logits)
    kept = read_tensors(tmp_path / "few" / WEIGHTS)
    kinds = {name.rpartition(".")[2]: tensor.dtype for name, tensor in kept.items()}
    assert kinds["codes"] == (torch.int8 if bits == 8 else torch.uint8)
    sizes = [(tmp_path / n / WEIGHTS).stat().st_size for n in ("plain", "few")]
    assert sizes[0] / sizes[1] > {8: 3.8, 4: 7.2}[bits]
    assert mean_bits(few) < {8: 8.4, 4: 4.5}[bits]


def test_a_tied_table_is_kept_once_and_stays_tied(tmp_path: Path) -> None:
    model = small("gpt2-pocket")
    assert model.config.tie_weights
    coded(model, 4).save(tmp_path / "few")
    few = pf.load(tmp_path / "few")
    assert few.head.out.codes is few.embedding.words.coded.codes
    assert "head.out.codes" not in read_tensors(tmp_path / "few" / WEIGHTS)


def test_state_is_carried_in_pieces() -> None:
    few = coded(small("pocket"), 8)
    tokens = tokens_for(few, 12)
    whole = few(tokens).logits
    first = few(tokens[:, :5])
    rest = few(tokens[:, 5:], first.state)
    torch.testing.assert_close(torch.cat((first.logits, rest.logits), 1), whole)


def test_another_configuration_shares_the_codes() -> None:
    few = coded(small("pocket"), 4)
    again = reconfigure(few, mem_len=7)
    assert again.config.mem_len == 7
    tokens = tokens_for(few, 6)
    assert torch.equal(again(tokens).logits, few(tokens).logits)
    assert again.blocks[0].qkv.codes is few.blocks[0].qkv.codes


def test_four_bits_lose_little_more_than_their_quantizer() -> None:
    """Steps of eight bits cost next to nothing beside steps of 32."""
    weight_oi = torch.randn(64, 100, generator=torch.Generator().manual_seed(1))
    made = CodedLinear.of(weight_oi, None, bits=4)
    ours = (made.weight - weight_oi).square().mean()
    exact = (decode(encode(weight_oi, Scheme(bits=4, per="group"))) - weight_oi).square().mean()
    assert ours < 1.02 * exact


@pytest.mark.parametrize("bits", [2, 3])
def test_fewer_bits_use_fewer_codes(bits: int) -> None:
    few = coded(small("pocket"), bits)
    for _, module in coded_maps(few):
        assert module.whole().unique().numel() <= 2**bits


def test_rows_are_looked_up_one_by_one() -> None:
    for bits in (8, 4):
        made = CodedLinear.of(torch.randn(20, 37), None, bits=bits)
        chosen = torch.tensor([[3, 3], [19, 0]])
        assert torch.equal(made.rows(chosen), made.weight[chosen])


def test_inputs_of_eight_bits_are_learned_from_a_text() -> None:
    model = small("llama-pocket")
    tokens = tokens_for(model, 30)
    few = coded(model, 8, activations=lambda m: m(tokens) and None)
    for name, module in coded_maps(few):
        assert (module.reach is not None) == (name.startswith("blocks"))
    error = (few(tokens).logits - model(tokens).logits).abs().max()
    assert 0 < error < 0.1 * model(tokens).logits.abs().max()


def test_inputs_beyond_their_reach_are_cut_and_others_rounded() -> None:
    x = torch.tensor([-3.0, -0.004, 0.3, 1.0], requires_grad=True)
    y = rounded_to(x, torch.tensor([1.0]))
    torch.testing.assert_close(y * 127, torch.tensor([-127.0, -1.0, 38.0, 127.0]))
    y.sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [0.0, 1.0, 1.0, 1.0]


def test_bits_by_name_and_what_is_kept() -> None:
    model = small("pocket")
    names = list(matrices(model))
    few = coded(model, {names[1]: 8, names[2]: 4})
    assert {path: m.bits for path, m in coded_maps(few)} == {names[1]: 8, names[2]: 4}
    less = coded(model, 8, keep=[names[0]])
    assert names[0] in matrices(less)


def test_bad_wishes_are_refused(tmp_path: Path) -> None:
    model = small("pocket")
    with pytest.raises(ConfigError, match="8 bits, or in 4 and fewer"):
        coded(model, 6)
    with pytest.raises(ConfigError, match="no matrix is called"):
        coded(model, {"blocks.99": 4})
    with pytest.raises(ConfigError, match="quantized already"):
        coded(coded(model, 8), 4)
    with pytest.raises(InputError, match="calibrate on is empty"):
        coded(model, 8, activations=lambda m: None)
    with torch.no_grad():
        model.blocks[0].norm.weight[3] = torch.nan
    with pytest.raises(InputError, match=r"inputs of 'blocks\.0\.qkv' have NaN"):
        coded(model, 8, activations=lambda m: m(torch.arange(9)[None]))


def test_codes_of_another_model_are_refused(tmp_path: Path) -> None:
    few = coded(small("pocket"), 8)
    tensors = {n: t.detach() for n, t in named_tensors(few).items()}
    tensors["blocks.0.qkv.codes"] = tensors["blocks.0.qkv.codes"][:5]
    with pytest.raises(InputError, match="of shape"):
        build_from(few.config, tensors)
    del tensors["blocks.0.qkv.codes"]
    with pytest.raises((InputError, FolderError), match=r"blocks\.0\.qkv"):
        build_from(few.config, tensors)


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize(("rows", "inputs"), [(1, 1), (16, 64), (33, 70), (130, 100)])
@pytest.mark.parametrize("vectors", [1, 2, 7, 65])
def test_the_kernel_multiplies_as_the_decoded_matrix_does(
    bits: int, rows: int, inputs: int, vectors: int
) -> None:
    generator = torch.Generator().manual_seed(rows)
    weight = torch.randn(rows, inputs, generator=generator)
    made = CodedLinear.of(weight, torch.randn(rows, generator=generator), bits=bits)
    x = torch.randn(3, vectors, inputs, generator=generator)
    with torch.no_grad():
        found = multiply(made, x)
        assert found is not None
        wanted = torch.nn.functional.linear(x.double(), made.weight.double(), made.bias.double())
    assert (found - wanted).abs().max() < 1e-3 * wanted.abs().max()
    assert multiply(made, x.double()) is None


def test_a_gradient_takes_the_decoded_way() -> None:
    made = CodedLinear.of(torch.randn(20, 40), None, bits=4)
    x = torch.randn(5, 40, requires_grad=True)
    made(x).sum().backward()
    torch.testing.assert_close(x.grad, made.weight.sum(0).expand(5, -1))
