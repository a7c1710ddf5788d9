"""Do ALBERT, MobileBERT and IB-BERT give the numbers that were recorded of them?"""

# b batch, t time, d width, h heads, n keys

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors import safe_open
from torch import Tensor
from torch.testing import assert_close

import parformer as pf
from parformer.blocks.taps import Taps
from parformer.errors import ConfigError, InputError
from parformer.model import Model
from tests.test_model import refused

ORACLES = Path(__file__).parents[1] / "oracles"
WORDS = "embedding.words.tables.0"
Tensors = dict[str, Tensor]


class Oracle:
    """Recorded tensors by the first part of their names."""

    def __init__(self, name: str) -> None:
        self.parts: dict[str, Tensors] = {}
        with safe_open(ORACLES / f"{name}.safetensors", "pt") as file:
            self.config = json.loads(file.metadata()["config"])
            for key in file.keys():  # noqa: SIM118 - it is no dict
                part, _, rest = key.partition(".")
                self.parts.setdefault(part, {})[rest] = file.get_tensor(key)

    def __getitem__(self, part: str) -> Tensors:
        return self.parts[part]

    def inputs(self, part: str = "input", prefix: str = "") -> Tensors:
        given = self[part]
        names = {"input_ids": "tokens", "token_type_ids": "token_types"}
        found = {ours: given[f"{prefix}{theirs}"].long() for theirs, ours in names.items()}
        if "attention_mask" in given:
            found["padding"] = given["attention_mask"].bool()
        return found


@pytest.fixture(scope="module")
def albert() -> Oracle:
    return Oracle("albert_a")


@pytest.fixture(scope="module")
def mobilebert() -> Oracle:
    return Oracle("mobilebert_a")


@pytest.fixture(scope="module")
def ib_bert() -> Oracle:
    return Oracle("ib_bert_a")


CONVERTERS: dict[str, Callable[..., Model]] = {
    "albert": pf.convert.from_albert,
    "mobilebert": pf.convert.from_mobilebert,
    "ib_bert": pf.convert.from_ib_bert,
}
PRETRAINED = [("albert", 1.5e-6, 1e-5), ("mobilebert", 2e-5, 6e-5)]
"""Largest differences, of outputs and of gradients as shares of a tensor's largest."""

oracle_of = pytest.mark.parametrize(("name", "close", "gradients"), PRETRAINED)


def pretraining_loss(model: Model, oracle: Oracle) -> Tensor:
    """Mean of masked words and mean of pairs, both from one step."""
    out = model(**oracle.inputs())
    labels = oracle["input"]["labels"].long()
    words = F.cross_entropy(out.logits.flatten(0, 1), labels.flatten(), ignore_index=-100)
    return words + F.cross_entropy(out.pair_logits, oracle["input"]["sentence_label"].long())


def near(found: Tensor, wanted: Tensor, share: float) -> None:
    """As near as a share of the largest; key biases have no gradient but noise."""
    assert_close(found, wanted, rtol=0, atol=share * max(1.0, float(wanted.abs().max())))


@oracle_of
def test_outputs_are_the_recorded_ones(
    name: str, close: float, gradients: float, request: pytest.FixtureRequest
) -> None:
    oracle: Oracle = request.getfixturevalue(name)
    model, taps = CONVERTERS[name](oracle["weight"], oracle.config), Taps("weights", "output")
    wanted = oracle["output"]
    with torch.no_grad():
        out = model(**oracle.inputs(), taps=taps)
        embedded = model.embedding(*inputs_of_embedding(oracle))
    near(out.hidden, wanted["last_hidden_state"], close)
    near(out.pooled, wanted["pooler_output"], close)
    near(out.logits, wanted["prediction_logits"], close)
    near(out.pair_logits, wanted["sentence_logits"], close)
    near(embedded, wanted["hidden_states.0"], close)
    for i, weights_bhtn in enumerate(taps.having("weights").values()):
        near(weights_bhtn, wanted[f"attentions.{i}"], close)
    layers = [told for place, told in taps.having("output").items() if is_layer(name, place)]
    assert len(layers) == oracle.config["num_hidden_layers"]
    for i, output_btd in enumerate(layers, start=1):
        near(output_btd, wanted[f"hidden_states.{i}"], close)


def inputs_of_embedding(oracle: Oracle) -> tuple[Tensor, Tensor, int, Tensor | None]:
    given = oracle.inputs()
    return given["tokens"], given["token_types"], 0, given.get("padding")


def is_layer(name: str, place: str) -> bool:
    """Whether a layer of theirs ends here: a bottleneck, or every second block of a group."""
    inside = place.split(".")
    return len(inside) == 1 if name != "albert" else len(inside) == 2 and int(inside[1]) % 2 == 1


@oracle_of
@pytest.mark.parametrize("training", [False, True])
def test_losses_and_gradients_are_the_recorded_ones(
    name: str, close: float, gradients: float, training: bool, request: pytest.FixtureRequest
) -> None:
    oracle: Oracle = request.getfixturevalue(name)
    model = CONVERTERS[name](oracle["weight"], oracle.config).train(training)
    loss = pretraining_loss(model, oracle)
    near(loss, oracle["output"]["loss"].squeeze(), close)
    labels = oracle["input"]["labels"].long()
    words = model(**oracle.inputs(), targets=labels)
    pair = F.cross_entropy(words.pair_logits, oracle["input"]["sentence_label"].long())
    near(words.loss + pair, loss.detach(), close)
    loss.backward()
    expected = dict(CONVERTERS[name](oracle["grad"], oracle.config).named_parameters())
    for key, parameter in model.named_parameters():
        found, wanted = parameter.grad, expected[key].detach()
        if key == WORDS:  # their look-up gives the padding's row no gradient
            found, wanted = found[1:], wanted[1:]
        near(found, wanted, gradients)
    # and the tied head does
    table = model.get_parameter(WORDS)
    handle = model.embedding.register_forward_hook(lambda _, __, output: output.detach())
    (head_only,) = torch.autograd.grad(pretraining_loss(model, oracle), [table])
    handle.remove()
    near(head_only[0], expected[WORDS].detach()[0], gradients)


def test_the_teacher_gives_the_recorded_numbers(ib_bert: Oracle) -> None:
    """With padding that is seen a little, as Google's code has it, and without padding."""
    model, taps = pf.convert.from_ib_bert(ib_bert["weight"], ib_bert.config), Taps("weights")
    out = model(**ib_bert.inputs(), taps=taps)
    near(out.hidden, ib_bert["output"]["hidden_states.2"], 2e-6)
    near(out.pooled, ib_bert["output"]["pooler_output"], 2e-6)
    for i, weights_bhtn in enumerate(taps.having("weights").values()):
        near(weights_bhtn, ib_bert["output"][f"attention_scores.{i}"].softmax(-1), 2e-6)
    given = ib_bert["input"]
    loss = (out.hidden * given["weight_of_hidden"]).sum()
    (loss + (out.pooled * given["weight_of_pooled"]).sum()).backward()
    expected = dict(pf.convert.from_ib_bert(ib_bert["grad"], ib_bert.config).named_parameters())
    for key, parameter in model.named_parameters():
        near(parameter.grad, expected[key].detach(), 4e-5)
    plain = model(**ib_bert.inputs("unmasked", "input."))
    near(plain.hidden, ib_bert["unmasked"]["output.hidden_states.2"], 2e-6)
    near(plain.pooled, ib_bert["unmasked"]["output.pooler_output"], 2e-6)


def test_the_teacher_sees_no_padding_unless_it_is_told_to(ib_bert: Oracle) -> None:
    config = {key: value for key, value in ib_bert.config.items() if key != "mask"}
    strict = pf.convert.from_ib_bert(ib_bert["weight"], config | {"trigram_input": True})
    given = ib_bert.inputs()
    with torch.no_grad():
        answers = []
        for shift in (0, 1):
            tokens = torch.where(given["padding"], given["tokens"], (given["tokens"] + shift) % 41)
            alone = pf.model.reconfigure(strict, trigrams="tokens")
            answers.append(alone(**given | {"tokens": tokens}).hidden[given["padding"]])
        assert_close(*answers, rtol=0, atol=0)
        soft = pf.convert.from_ib_bert(ib_bert["weight"], ib_bert.config)(**given).hidden
        apart = (strict(**given).hidden - soft)[given["padding"]].abs().max()
    assert 1e-4 < float(apart) < 0.1
    with refused(ConfigError, "unknown mask 'soft'", "'-inf'"):
        pf.convert.from_ib_bert(ib_bert["weight"], config | {"mask": "soft"})


def test_neighbours_that_are_no_tokens_count_only_as_the_released_code_has_it(
    mobilebert: Oracle,
) -> None:
    released = pf.convert.from_mobilebert(mobilebert["weight"], mobilebert.config)
    meant, given = pf.model.reconfigure(released, trigrams="tokens"), mobilebert.inputs()
    lengths = given["padding"].sum(1).tolist()
    assert min(lengths) < given["tokens"].shape[1]
    row = lengths.index(min(lengths))
    alone = {n: t[row : row + 1, : lengths[row]] for n, t in given.items() if n != "padding"}
    with torch.no_grad():
        short = meant(**alone).hidden[0]
        assert_close(meant(**given).hidden[row, : lengths[row]], short, rtol=1e-4, atol=1e-4)
        assert not torch.allclose(released(**given).hidden[row, : lengths[row]], short, atol=1e-2)


@pytest.mark.parametrize("name", CONVERTERS)
def test_converted_models_are_saved_and_loaded(
    name: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    oracle: Oracle = request.getfixturevalue(name)
    model = CONVERTERS[name](oracle["weight"], oracle.config)
    model.save(tmp_path / "model")
    again = pf.load(tmp_path / "model")
    assert pf.cost(model.config).parameters == sum(p.numel() for p in again.parameters())
    with torch.no_grad():
        assert_close(again(**oracle.inputs()).hidden, model(**oracle.inputs()).hidden)


@pytest.mark.parametrize("name", CONVERTERS)
def test_no_weight_may_be_missing_or_left_over(name: str, request: pytest.FixtureRequest) -> None:
    oracle: Oracle = request.getfixturevalue(name)
    weights, config = oracle["weight"], oracle.config
    whole_heads = ("predictions.dense.weight", "classifier.weight", "relationship.weight", "pooler")
    for missing in weights:
        if any(part in missing for part in whole_heads):
            continue  # without these there is no such head, and the rest of it is left over
        with refused(InputError):
            CONVERTERS[name]({n: w for n, w in weights.items() if n != missing}, config)
    with refused(InputError, "'adapter.weight'", "no place"):
        CONVERTERS[name](weights | {"adapter.weight": torch.zeros(2)}, config)


@pytest.mark.parametrize(
    ("name", "changes", "says"),
    [
        ("albert", {"embedding_size": 16}, ("embedding_size 16 is hidden_size",)),
        ("albert", {"num_hidden_groups": 0}, ("num_hidden_groups must be at least 1",)),
        ("albert", {"hidden_act": "mish"}, ("unknown activation 'mish'",)),
        ("mobilebert", {"normalization_type": "batch"}, ("'batch'", "no_norm, layer_norm")),
        ("mobilebert", {"normalization_type": "layer_norm"}, ("1e-12", "layer_norm_eps=1e-05")),
        ("mobilebert", {"num_feedforward_networks": 0}, ("must be at least 1",)),
    ],
)
def test_what_cannot_be_kept_is_refused(
    name: str, changes: dict[str, Any], says: tuple[str, ...], request: pytest.FixtureRequest
) -> None:
    oracle: Oracle = request.getfixturevalue(name)
    with refused(ConfigError, *says):
        CONVERTERS[name](oracle["weight"], oracle.config | changes)
