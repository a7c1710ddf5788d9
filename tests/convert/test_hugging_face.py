"""Do converted weights give the numbers of the model they came from?

Transformer-XL answers to recorded log-probabilities and to a textbook twin below; GPT-2, BERT and
its relatives, and Llama run beside the Hugging Face models themselves.
"""

# b batch, t time, m memory, n = m + t keys, h heads, k head width, v vocabulary

from __future__ import annotations

import json
import math
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors import safe_open
from torch import Tensor, nn

from parformer import convert
from parformer.errors import ConfigError, InputError
from parformer.model import Model
from tests.test_model import refused

transformers = pytest.importorskip("transformers")

ORACLES = Path(__file__).parents[1] / "oracles"
Weights = dict[str, Tensor]


def assert_same_gradients(model: Model, expected: Model) -> None:
    """Compare a model's gradients with gradients that went through the converter."""
    wanted = dict(expected.named_parameters())
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, f"{name} got no gradient"
        torch.testing.assert_close(
            parameter.grad,
            wanted[name].detach(),
            atol=1e-6,
            rtol=1e-5,
            msg=lambda text, name=name: f"gradient of {name}: {text}",
        )


# Transformer-XL


def read_oracle(name: str) -> tuple[dict[str, Any], Weights, Tensor, list[Tensor]]:
    """Configuration, weights, tokens and each segment's log-probabilities."""
    with safe_open(ORACLES / f"transformer_xl_{name}.safetensors", "pt") as file:
        metadata = file.metadata()
        weights = {
            key.removeprefix("weight."): file.get_tensor(key)
            for key in file.keys()  # noqa: SIM118 - it is no dict
            if key.startswith("weight.")
        }
        count = len(json.loads(metadata["segments"]))
        log_probs = [file.get_tensor(f"log_probs.{i}") for i in range(count)]
        return json.loads(metadata["config"]), weights, file.get_tensor("tokens"), log_probs


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("name", ["a", "b"])
def test_transformer_xl_gives_the_recorded_log_probabilities(
    name: str, training: bool, mode: Callable[[], Any]
) -> None:
    config, weights, tokens, log_probs = read_oracle(name)
    model = convert.from_transformer_xl(weights, config).train(training)
    rest = tokens
    with mode():
        state = model.initial_state(tokens.shape[0], zeros=True)
        for expected in log_probs:
            piece, rest = rest[:, : expected.shape[1]], rest[:, expected.shape[1] :]
            out = model(piece, state=state)
            state = out.state
            torch.testing.assert_close(out.logits, expected, atol=1e-5, rtol=0)
    assert rest.shape[1] == 0


def test_a_recorded_text_read_token_by_token_gives_the_same_log_probabilities() -> None:
    config, weights, tokens, log_probs = read_oracle("a")
    model = convert.from_transformer_xl(weights, config)
    with torch.inference_mode():
        state = model.initial_state(tokens.shape[0], zeros=True)
        found = []
        for i in range(tokens.shape[1]):
            out = model(tokens[:, i : i + 1], state=state)
            state = out.state
            found.append(out.logits)
    torch.testing.assert_close(torch.cat(found, 1), torch.cat(log_probs, 1), atol=1e-5, rtol=0)


class TextbookTransformerXL:
    """The paper's equations, one after the other, on weights by their published names."""

    def __init__(self, config: dict[str, Any], weights: Weights) -> None:
        self.config, self.weights = config, weights
        self.edges = [0, *config["cutoffs"], config["vocab_size"]]

    def weight(self, name: str) -> Tensor:
        return self.weights[name]

    def tied(self, name: str, other: str) -> Tensor:
        return self.weights[other if self.config["tie_word_embeddings"] else name]

    def embed(self, tokens_bt: Tensor) -> Tensor:
        rows = []
        for token in tokens_bt.flatten().tolist():
            i = 0
            if self.config["div_val"] > 1:
                i = max(i for i, low in enumerate(self.edges[:-1]) if low <= token)
                token -= self.edges[i]
            row = self.weight(f"transformer.word_emb.emb_layers.{i}.weight")[token]
            projection = f"transformer.word_emb.emb_projs.{i}"
            rows.append(self.weight(projection) @ row if projection in self.weights else row)
        x = torch.stack(rows).view(*tokens_bt.shape, -1)
        return x * math.sqrt(self.config["d_model"])

    def distances(self, count: int, like: Tensor) -> Tensor:
        place = torch.arange(count - 1, -1, -1.0)
        if self.config["clamp_len"] > 0:
            place = place.clamp(max=self.config["clamp_len"])
        rate = 1 / 10_000 ** (torch.arange(0.0, like.shape[-1], 2.0) / like.shape[-1])
        angle = place[:, None] * rate[None]
        return torch.cat((angle.sin(), angle.cos()), -1).to(like.dtype)

    @staticmethod
    def relative_shift(scores_bhtn: Tensor) -> Tensor:
        """One column of zeros in front, read as if rows were one shorter, first row off."""
        b, h, t, n = scores_bhtn.shape
        padded = torch.cat((scores_bhtn.new_zeros(b, h, t, 1), scores_bhtn), -1)
        return padded.view(b, h, n + 1, t)[:, :, 1:].reshape(b, h, t, n)

    def hidden(self, t: int, m: int) -> Tensor:
        """What a query must not see: the future, and with same_length the distant past."""
        ones, n = torch.ones(t, m + t), m + t
        hidden = ones.triu(1 + m)
        if self.config["same_length"] and n > self.config["mem_len"]:
            hidden += ones.tril(-(t - (n - self.config["mem_len"])))
        return hidden.bool()

    def norm(self, name: str, x: Tensor) -> Tensor:
        weight, bias = self.weight(f"{name}.weight"), self.weight(f"{name}.bias")
        mean, variance = x.mean(-1, keepdim=True), x.var(-1, correction=0, keepdim=True)
        return (x - mean) / (variance + 1e-5).sqrt() * weight + bias

    def attend(self, i: int, x_btd: Tensor, memory_bmd: Tensor) -> Tensor:
        name, heads = f"transformer.layers.{i}.dec_attn", self.config["n_head"]
        pre = self.config.get("pre_lnorm", False)
        all_bnd = torch.cat((memory_bmd, x_btd), 1)
        read_bnd = self.norm(f"{name}.layer_norm", all_bnd) if pre else all_bnd
        qkv = read_bnd @ self.weight(f"{name}.qkv_net.weight").T
        q, k, v = (part.unflatten(-1, (heads, -1)).transpose(1, 2) for part in qkv.chunk(3, -1))
        t, m = x_btd.shape[1], memory_bmd.shape[1]
        q = q[:, :, m:]
        r_nd = self.distances(m + t, x_btd) @ self.weight(f"{name}.r_net.weight").T
        r = r_nd.unflatten(-1, (heads, -1)).transpose(0, 1)
        place = name if self.config["untie_r"] else "transformer"
        content, position = (self.weight(f"{place}.r_{x}_bias")[:, None] for x in "wr")
        scores = (q + content) @ k.transpose(-1, -2)
        scores = scores + self.relative_shift((q + position) @ r.transpose(-1, -2))
        scores = scores / math.sqrt(q.shape[-1])
        weights = scores.masked_fill(self.hidden(t, m), -math.inf).softmax(-1)
        y_btd = (weights @ v).transpose(1, 2).flatten(2) @ self.weight(f"{name}.o_net.weight").T
        return x_btd + y_btd if pre else self.norm(f"{name}.layer_norm", x_btd + y_btd)

    def feed(self, i: int, x_btd: Tensor) -> Tensor:
        name, pre = f"transformer.layers.{i}.pos_ff", self.config.get("pre_lnorm", False)
        y = self.norm(f"{name}.layer_norm", x_btd) if pre else x_btd
        for part in (0, 3):
            weight, bias = (self.weight(f"{name}.CoreNet.{part}.{x}") for x in ("weight", "bias"))
            y = y @ weight.T + bias
            y = y.relu() if part == 0 else y
        return x_btd + y if pre else self.norm(f"{name}.layer_norm", x_btd + y)

    def log_probabilities(self, x_btd: Tensor) -> Tensor:
        parts: list[Tensor] = []
        one_table = self.config["div_val"] == 1
        for i, (low, high) in enumerate(pairwise(self.edges)):
            at = 0 if one_table else i
            table = self.tied(
                f"crit.out_layers.{at}.weight", f"transformer.word_emb.emb_layers.{at}.weight"
            )
            bias = self.weight(f"crit.out_layers.{at}.bias")
            if one_table:
                table, bias = table[low:high], bias[low:high]
            name = "crit.out_projs.0" if i == 0 else f"transformer.word_emb.emb_projs.{at}"
            y = x_btd @ self.weight(name) if name in self.weights else x_btd
            if i == 0 and len(self.edges) > 2:
                table = torch.cat((table, self.weight("crit.cluster_weight")))
                bias = torch.cat((bias, self.weight("crit.cluster_bias")))
            log_probs = (y @ table.T + bias).log_softmax(-1)
            if i:
                column = self.edges[1] + i - 1
                log_probs = log_probs + parts[0][..., column : column + 1]
            parts.append(log_probs)
        parts[0] = parts[0][..., : self.edges[1]]
        return torch.cat(parts, -1)

    def __call__(self, tokens_bt: Tensor, memory: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
        x, after = self.embed(tokens_bt), []
        for i, memory_bmd in enumerate(memory):
            after.append(torch.cat((memory_bmd, x), 1)[:, -self.config["mem_len"] :].detach())
            x = self.feed(i, self.attend(i, x, memory_bmd))
        return self.log_probabilities(x), after


SECOND_NAMES = ("crit.out_layers.0.weight", "crit.out_layers.1.weight", "crit.out_layers.2.weight")


def make_transformer_xl(generator: torch.Generator, **changes: Any) -> tuple[Any, Weights]:
    """A configuration and random weights by the published names."""
    config: dict[str, Any] = {
        "vocab_size": 23,
        "cutoffs": [7, 13],
        "d_model": 10,
        "d_embed": 10,
        "n_head": 3,
        "d_head": 4,
        "d_inner": 13,
        "div_val": 1,
        "n_layer": 2,
        "mem_len": 5,
        "clamp_len": -1,
        "same_length": False,
        "untie_r": True,
        "tie_word_embeddings": True,
        **changes,
    }
    d, e, inside = config["d_model"], config["d_embed"], config["n_head"] * config["d_head"]
    edges = [0, *config["cutoffs"], config["vocab_size"]]
    sizes = [high - low for low, high in pairwise(edges)]
    widths = [e // config["div_val"] ** i for i in range(len(sizes))]
    if config["div_val"] == 1:
        sizes, widths = [config["vocab_size"]], [e]
    shapes: dict[str, tuple[int, ...]] = {
        "crit.cluster_weight": (len(edges) - 2, e),
        "crit.cluster_bias": (len(edges) - 2,),
    }
    for i, (size, width) in enumerate(zip(sizes, widths, strict=True)):
        shapes[f"transformer.word_emb.emb_layers.{i}.weight"] = (size, width)
        shapes[f"crit.out_layers.{i}.bias"] = (size,)
        if not config["tie_word_embeddings"]:
            shapes[f"crit.out_layers.{i}.weight"] = (size, width)
        if config["div_val"] > 1 or d != e:
            shapes[f"transformer.word_emb.emb_projs.{i}"] = (d, width)
            shapes["crit.out_projs.0"] = (d, e)
    for i in range(config["n_layer"]):
        attend, feed = f"transformer.layers.{i}.dec_attn", f"transformer.layers.{i}.pos_ff"
        shapes[f"{attend}.qkv_net.weight"] = (3 * inside, d)
        shapes[f"{attend}.o_net.weight"] = (d, inside)
        shapes[f"{attend}.r_net.weight"] = (inside, d)
        shapes[f"{feed}.CoreNet.0.weight"] = (config["d_inner"], d)
        shapes[f"{feed}.CoreNet.0.bias"] = (config["d_inner"],)
        shapes[f"{feed}.CoreNet.3.weight"] = (d, config["d_inner"])
        shapes[f"{feed}.CoreNet.3.bias"] = (d,)
        for name in (attend, feed):
            shapes |= {f"{name}.layer_norm.{x}": (d,) for x in ("weight", "bias")}
        place = attend if config["untie_r"] else "transformer"
        shapes |= {f"{place}.r_{x}_bias": (config["n_head"], config["d_head"]) for x in "wr"}
    weights = {
        name: torch.randn(shape, generator=generator, dtype=torch.float64) * 0.5
        for name, shape in shapes.items()
    }
    return config, weights


TRANSFORMER_XL_SHAPES: dict[str, dict[str, Any]] = {
    "one table": {},
    "falling widths": {"div_val": 2, "untie_r": False},
    "same length": {"same_length": True, "clamp_len": 3, "mem_len": 6},
    "pre-norm": {"pre_lnorm": True, "untie_r": False},
    "untied head": {"tie_word_embeddings": False},
    "untied clusters": {"tie_word_embeddings": False, "div_val": 2},
    "narrow table": {"d_embed": 6},
    "long memory": {"mem_len": 19, "n_layer": 3},
}


def assert_like_the_textbook(config: dict[str, Any], weights: Weights, *, zeros: bool) -> None:
    """Two segments of training: log-probabilities, losses and every gradient."""
    leaves = {name: w.double().requires_grad_() for name, w in weights.items()}
    twin = TextbookTransformerXL(config, leaves)
    model = convert.from_transformer_xl({n: w.detach() for n, w in leaves.items()}, config).train()
    assert all(parameter.dtype == torch.float64 for parameter in model.parameters())
    generator = torch.Generator().manual_seed(5)
    text = torch.randint(config["vocab_size"], (2, 9), generator=generator)
    state = model.initial_state(2, zeros=zeros)
    start = config["mem_len"] if zeros else 0
    memory = [torch.zeros(2, start, config["d_model"]).double()] * config["n_layer"]
    total_ours, total_twins = torch.zeros(()), torch.zeros((), dtype=torch.float64)
    for low, high in ((0, 5), (5, 8)):
        tokens, targets = text[:, low:high], text[:, low + 1 : high + 1]
        log_probs, memory = twin(tokens, memory)
        torch.testing.assert_close(
            model(tokens, state=state).logits.double(), log_probs, atol=1e-5, rtol=0
        )
        out = model(tokens, state=state, targets=targets)
        state = out.state
        loss = F.nll_loss(log_probs.flatten(0, 1), targets.flatten())
        torch.testing.assert_close(out.loss.double(), loss, atol=1e-5, rtol=1e-5)
        total_ours, total_twins = total_ours + out.loss, total_twins + loss
    total_ours.backward()
    total_twins.backward()
    gradients = {name: leaf.grad for name, leaf in leaves.items() if leaf.grad is not None}
    assert_same_gradients(model, convert.from_transformer_xl(gradients, config))


@pytest.mark.parametrize("zeros", [False, True], ids=["empty memory", "zero memory"])
@pytest.mark.parametrize("name", ["a", "b"])
def test_recorded_weights_train_like_the_textbook(name: str, zeros: bool) -> None:
    config, weights, _, _ = read_oracle(name)
    second = ("inv_freq", *SECOND_NAMES, "crit.out_projs.1", "crit.out_projs.2")
    first = {
        key: weight
        for key, weight in weights.items()
        if not key.endswith(second) and not ("dec_attn" in key and key.endswith("_bias"))
    }
    assert_like_the_textbook(config, first, zeros=zeros)


@pytest.mark.parametrize("shape", sorted(TRANSFORMER_XL_SHAPES))
def test_every_shape_of_transformer_xl_trains_like_the_textbook(shape: str) -> None:
    generator = torch.Generator().manual_seed(len(shape))
    config, weights = make_transformer_xl(generator, **TRANSFORMER_XL_SHAPES[shape])
    assert_like_the_textbook(config, weights, zeros=False)


def test_second_names_of_tied_weights_are_welcome() -> None:
    config, weights = make_transformer_xl(torch.Generator().manual_seed(0), d_embed=6)
    plain = convert.from_transformer_xl(weights, config)
    table = weights["transformer.word_emb.emb_layers.0.weight"]
    projection = weights["transformer.word_emb.emb_projs.0"]
    doubled = weights | {
        "crit.out_layers.0.weight": table,
        "crit.out_projs.1": projection,
        "crit.out_projs.2": projection,
        "transformer.pos_emb.inv_freq": torch.ones(5),
    }
    again = convert.from_transformer_xl(doubled, config)
    for one, other in zip(plain.parameters(), again.parameters(), strict=True):
        assert torch.equal(one, other)


# Hugging Face, side by side


def randomise(model: nn.Module, number: int, spread: float = 0.2) -> nn.Module:
    """Every weight away from its start: zero biases and unit norms would hide mistakes."""
    generator = torch.Generator().manual_seed(number)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * spread)
    return model.double().eval()


def gradients_of(model: nn.Module) -> Weights:
    """Gradients by every name a weight has, tied ones included."""
    return {
        name: torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        for name, parameter in model.named_parameters(remove_duplicate=False)
    }


def some_tokens(size: int, batch: int, time: int, number: int = 0) -> Tensor:
    return torch.randint(size, (batch, time), generator=torch.Generator().manual_seed(number))


GPT2_SHAPES: list[dict[str, Any]] = [
    {"n_layer": 1, "n_embd": 6, "n_head": 1, "vocab_size": 11},
    {"n_layer": 2, "n_embd": 15, "n_head": 5, "vocab_size": 29, "n_inner": 7},
    {
        "n_layer": 3,
        "n_embd": 12,
        "n_head": 3,
        "vocab_size": 17,
        "n_inner": 31,
        "activation_function": "relu",
        "tie_word_embeddings": False,
        "attn_implementation": "eager",
    },
    {
        "n_layer": 2,
        "n_embd": 14,
        "n_head": 2,
        "vocab_size": 37,
        "activation_function": "gelu",
        "layer_norm_epsilon": 1e-3,
    },
]

LLAMA_SHAPES: list[dict[str, Any]] = [
    {"hidden_size": 12, "num_attention_heads": 6, "num_key_value_heads": 2, "vocab_size": 19},
    {
        "hidden_size": 16,
        "num_attention_heads": 4,
        "num_key_value_heads": 1,
        "vocab_size": 31,
        "tie_word_embeddings": True,
        "rope_parameters": {"rope_type": "default", "rope_theta": 500.0},
        "attn_implementation": "eager",
    },
    {
        "hidden_size": 9,
        "num_attention_heads": 3,
        "num_key_value_heads": 3,
        "head_dim": 4,
        "vocab_size": 13,
        "num_hidden_layers": 3,
        "attention_bias": True,
        "mlp_bias": True,
        "hidden_act": "gelu_new",
        "rms_norm_eps": 1e-3,
    },
]


def make_gpt2(shape: dict[str, Any], number: int = 0, spread: float = 0.2) -> tuple[Any, Model]:
    config = transformers.GPT2Config(
        **{
            "n_positions": 40,
            "bos_token_id": 0,
            "eos_token_id": 0,
            "resid_pdrop": 0.0,
            "embd_pdrop": 0.0,
            "attn_pdrop": 0.0,
            **shape,
        }
    )
    theirs = randomise(transformers.GPT2LMHeadModel(config), number, spread)
    return theirs, convert.from_gpt2(theirs.state_dict(), config.to_dict())


def make_llama(shape: dict[str, Any], number: int = 0, spread: float = 0.2) -> tuple[Any, Model]:
    config = transformers.LlamaConfig(
        **{
            "num_hidden_layers": 2,
            "intermediate_size": 21,
            "max_position_embeddings": 40,
            "bos_token_id": 0,
            "eos_token_id": 0,
            **shape,
        }
    )
    theirs = randomise(transformers.LlamaForCausalLM(config), number, spread)
    return theirs, convert.from_llama(theirs.state_dict(), config.to_dict())


CAUSAL = [
    *(pytest.param(make_gpt2, shape, id=f"gpt2-{i}") for i, shape in enumerate(GPT2_SHAPES)),
    *(pytest.param(make_llama, shape, id=f"llama-{i}") for i, shape in enumerate(LLAMA_SHAPES)),
]
Make = Callable[..., tuple[Any, Model]]
CONVERTERS: dict[Any, Callable[..., Model]] = {
    make_gpt2: convert.from_gpt2,
    make_llama: convert.from_llama,
}


@pytest.mark.parametrize(("make", "shape"), CAUSAL)
def test_a_causal_model_gives_the_logits_and_gradients_it_came_with(
    make: Make, shape: dict[str, Any]
) -> None:
    theirs, ours = make(shape, number=3)
    size = shape["vocab_size"]
    tokens, targets = some_tokens(size, 3, 17), some_tokens(size, 3, 17, number=1)
    expected = theirs(tokens).logits
    torch.testing.assert_close(ours(tokens).logits, expected, atol=1e-5, rtol=1e-5)
    wanted = F.cross_entropy(expected.flatten(0, 1), targets.flatten())
    for training in (False, True):
        ours.train(training).zero_grad()
        loss = ours(tokens, targets=targets).loss
        torch.testing.assert_close(loss.double(), wanted, atol=1e-5, rtol=1e-5)
        loss.backward()
        if not training:
            wanted.backward()
        expected_gradients = CONVERTERS[make](gradients_of(theirs), theirs.config.to_dict())
        assert_same_gradients(ours, expected_gradients)


@pytest.mark.parametrize("pieces", [(1,) * 19, (5, 1, 13), (18, 1)], ids=str)
@pytest.mark.parametrize(("make", "shape"), CAUSAL)
def test_a_text_in_pieces_gives_the_logits_of_the_whole(
    make: Make, shape: dict[str, Any], pieces: tuple[int, ...]
) -> None:
    theirs, ours = make(shape, number=4)
    tokens = some_tokens(shape["vocab_size"], 2, 19)
    with torch.no_grad():
        expected = theirs(tokens).logits
        state, found = None, []
        for piece in tokens.split(pieces, dim=1):
            out = ours(piece, state=state)
            state = out.state
            found.append(out.logits)
    torch.testing.assert_close(torch.cat(found, 1), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("make", "shape"), CAUSAL)
def test_greedy_generation_writes_the_same_tokens(make: Make, shape: dict[str, Any]) -> None:
    theirs, ours = make(shape, number=6, spread=0.7)
    prompt = some_tokens(shape["vocab_size"], 2, 5)
    theirs.generation_config.eos_token_id = None
    expected = theirs.generate(
        prompt,
        attention_mask=torch.ones_like(prompt),
        max_new_tokens=20,
        do_sample=False,
        pad_token_id=0,
    )
    text, piece, state = prompt, prompt, None
    with torch.inference_mode():
        for _ in range(20):
            out = ours(piece, state=state, last_only=True)
            state, piece = out.state, out.logits.argmax(-1)
            text = torch.cat((text, piece), 1)
    assert text.tolist() == expected.tolist()
    assert len(set(text[0, 5:].tolist())) > 1  # a model that repeats itself would prove little


BERT_SHAPES: list[dict[str, Any]] = [
    {"hidden_size": 6, "num_attention_heads": 1, "intermediate_size": 11, "vocab_size": 13},
    {
        "hidden_size": 15,
        "num_attention_heads": 3,
        "intermediate_size": 8,
        "vocab_size": 29,
        "num_hidden_layers": 3,
        "type_vocab_size": 3,
        "attn_implementation": "eager",
    },
    {
        "hidden_size": 14,
        "num_attention_heads": 7,
        "intermediate_size": 17,
        "vocab_size": 21,
        "hidden_act": "relu",
        "layer_norm_eps": 1e-3,
    },
]


def make_bert_config(shape: dict[str, Any]) -> Any:
    return transformers.BertConfig(
        # a padding token's row would get no gradient
        **{"num_hidden_layers": 2, "max_position_embeddings": 16, "pad_token_id": None, **shape}
    )


def some_sentences(shape: dict[str, Any]) -> dict[str, Tensor]:
    """Three texts of different lengths with their token types and padding."""
    tokens = some_tokens(shape["vocab_size"], 3, 9)
    types = some_tokens(shape.get("type_vocab_size", 2), 3, 9, number=1)
    padding = torch.arange(9)[None] < torch.tensor([[9], [4], [1]])
    return {"tokens": tokens, "token_types": types, "padding": padding}


def by_their_names(sentences: dict[str, Tensor]) -> dict[str, Tensor]:
    names = {"tokens": "input_ids", "token_types": "token_type_ids", "padding": "attention_mask"}
    return {names[name]: tensor.long() for name, tensor in sentences.items()}


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("pooler", [False, True])
@pytest.mark.parametrize("shape", BERT_SHAPES, ids=lambda shape: f"width-{shape['hidden_size']}")
def test_bert_gives_the_hidden_states_and_gradients_it_came_with(
    shape: dict[str, Any], pooler: bool, padded: bool
) -> None:
    config = make_bert_config(shape)
    theirs = randomise(transformers.BertModel(config, add_pooling_layer=pooler), 7)
    ours = convert.from_bert(theirs.state_dict(), config.to_dict())
    sentences = some_sentences(shape)
    if not padded:
        del sentences["padding"]
    expected, out = theirs(**by_their_names(sentences)), ours(**sentences)
    torch.testing.assert_close(out.hidden, expected.last_hidden_state, atol=1e-5, rtol=1e-5)
    direction = torch.randn(out.hidden.shape, generator=torch.Generator().manual_seed(8)).double()
    loss, wanted = (out.hidden * direction).mean(), (expected.last_hidden_state * direction).mean()
    if pooler:
        torch.testing.assert_close(out.pooled, expected.pooler_output, atol=1e-5, rtol=1e-5)
        loss, wanted = (
            loss + out.pooled.square().sum(),
            wanted + expected.pooler_output.square().sum(),
        )
    else:
        assert out.pooled is None
    assert out.logits is None
    assert out.state is None
    loss.backward()
    wanted.backward()
    assert_same_gradients(ours, convert.from_bert(gradients_of(theirs), config.to_dict()))


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("shape", BERT_SHAPES, ids=lambda shape: f"width-{shape['hidden_size']}")
def test_masked_bert_gives_the_logits_loss_and_gradients_it_came_with(
    shape: dict[str, Any], tied: bool
) -> None:
    config = make_bert_config(shape | {"tie_word_embeddings": tied})
    theirs = randomise(transformers.BertForMaskedLM(config), 9)
    ours = convert.from_bert(theirs.state_dict(), config.to_dict())
    sentences = some_sentences(shape)
    targets = some_tokens(shape["vocab_size"], 3, 9, number=2)
    targets[:, ::2] = -100
    expected = theirs(**by_their_names(sentences), labels=targets)
    torch.testing.assert_close(ours(**sentences).logits, expected.logits, atol=1e-5, rtol=1e-5)
    loss = ours(**sentences, targets=targets).loss
    torch.testing.assert_close(loss.double(), expected.loss, atol=1e-5, rtol=1e-5)
    loss.backward()
    expected.loss.backward()
    assert_same_gradients(ours, convert.from_bert(gradients_of(theirs), config.to_dict()))


def test_without_token_types_bert_takes_the_first() -> None:
    config = make_bert_config(BERT_SHAPES[1])
    theirs = randomise(transformers.BertModel(config), 1)
    ours = convert.from_bert(theirs.state_dict(), config.to_dict())
    tokens = some_tokens(29, 2, 6)
    torch.testing.assert_close(
        ours(tokens).hidden, theirs(tokens).last_hidden_state, atol=1e-6, rtol=1e-6
    )


ENCODERS: dict[str, tuple[str, Callable[..., Model], dict[str, Any]]] = {
    "BertForPreTraining": ("Bert", convert.from_bert, BERT_SHAPES[1]),
    "BertForNextSentencePrediction": ("Bert", convert.from_bert, BERT_SHAPES[0]),
    "AlbertForPreTraining": (
        "Albert",
        convert.from_albert,
        {"num_hidden_layers": 5, "num_hidden_groups": 2, "inner_group_num": 2},
    ),
    "AlbertForMaskedLM": (
        "Albert",
        convert.from_albert,
        {"num_hidden_groups": 3, "num_hidden_layers": 3, "hidden_act": "gelu"},
    ),
    "AlbertModel": ("Albert", convert.from_albert, {"tie_word_embeddings": False}),
    "MobileBertForPreTraining": ("MobileBert", convert.from_mobilebert, {}),
    "MobileBertForMaskedLM": (
        "MobileBert",
        convert.from_mobilebert,
        {
            "key_query_shared_bottleneck": False,
            "use_bottleneck_attention": True,
            "num_feedforward_networks": 2,
            "normalization_type": "layer_norm",
            "layer_norm_eps": 1e-5,
            "hidden_act": "gelu",
            "trigram_input": False,
        },
    ),
    "MobileBertModel": (
        "MobileBert",
        convert.from_mobilebert,
        {"classifier_activation": False, "num_feedforward_networks": 1, "embedding_size": 12},
    ),
    "MobileBertModel flat": ("MobileBert", convert.from_mobilebert, {"use_bottleneck": False}),
    "DistilBertForMaskedLM": ("DistilBert", convert.from_distilbert, {"activation": "relu"}),
    "DistilBertModel": ("DistilBert", convert.from_distilbert, {}),
}
SMALL: dict[str, dict[str, Any]] = {
    "Bert": {"num_hidden_layers": 2},
    "Albert": {
        "embedding_size": 5, "hidden_size": 12, "num_hidden_layers": 4, "num_attention_heads": 3,
        "intermediate_size": 17,
    },
    "MobileBert": {
        "embedding_size": 5, "hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 2,
        "intermediate_size": 9, "intra_bottleneck_size": 8, "num_feedforward_networks": 3,
    },
    "DistilBert": {"dim": 12, "n_layers": 3, "n_heads": 3, "hidden_dim": 17},
}  # fmt: skip


def make_encoder(name: str) -> tuple[Any, Model, dict[str, Any]]:
    """Their model, ours with its weights, and its configuration."""
    family, take, shape = ENCODERS[name]
    sizes = {"vocab_size": 23, "max_position_embeddings": 16, "pad_token_id": None}
    config = getattr(transformers, f"{family}Config")(**sizes | SMALL[family] | shape)
    theirs = randomise(getattr(transformers, name.split()[0])(config), 11)
    return theirs, take(theirs.state_dict(), config.to_dict()), config.to_dict()


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("name", ENCODERS)
def test_an_encoder_gives_what_it_came_with(name: str, padded: bool) -> None:
    """Hidden states, what is pooled, logits of words and pairs, and all gradients."""
    theirs, ours, config = make_encoder(name)
    sentences = some_sentences({"vocab_size": config["vocab_size"]})
    if not padded:
        del sentences["padding"]
    if "DistilBert" in name:
        del sentences["token_types"]
    expected = theirs(**by_their_names(sentences), output_hidden_states=True)
    out = ours(**sentences)
    pairs = [(out.hidden, expected.hidden_states[-1])]
    words = expected.get("prediction_logits", expected.get("logits"))
    if "NextSentence" in name:
        pairs.append((out.pair_logits, words))
    elif words is not None:
        pairs.append((out.logits, words))
    if "PreTraining" in name:
        order = expected.get("seq_relationship_logits", expected.get("sop_logits"))
        pairs.append((out.pair_logits, order))
    if "pooler_output" in expected:
        pairs.append((out.pooled, expected.pooler_output))
    total, wanted = torch.zeros(()), torch.zeros(())
    for number, (found, theirs_too) in enumerate(pairs):
        torch.testing.assert_close(found, theirs_too, atol=1e-5, rtol=1e-5)
        probe = torch.randn(found.shape, generator=torch.Generator().manual_seed(number)).double()
        total, wanted = total + (found * probe).mean(), wanted + (theirs_too * probe).mean()
    total.backward()
    wanted.backward()
    again = ENCODERS[name][1](gradients_of(theirs), config)
    for parameter in ours.parameters():  # what only a head that was not asked would use
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
    assert_same_gradients(ours, again)


def test_converted_weights_are_copies() -> None:
    theirs, ours = make_gpt2(GPT2_SHAPES[0])
    before = ours.embedding.positions.clone()
    with torch.no_grad():
        theirs.transformer.wpe.weight.zero_()
    assert torch.equal(ours.embedding.positions, before)


# What cannot be represented is refused


def small_gpt2() -> tuple[Weights, dict[str, Any]]:
    theirs, _ = make_gpt2(GPT2_SHAPES[1])
    return theirs.state_dict(), theirs.config.to_dict()


def small_llama() -> tuple[Weights, dict[str, Any]]:
    theirs, _ = make_llama(LLAMA_SHAPES[2])
    return theirs.state_dict(), theirs.config.to_dict()


def small_bert() -> tuple[Weights, dict[str, Any]]:
    config = make_bert_config(BERT_SHAPES[0])
    return randomise(transformers.BertForMaskedLM(config), 0).state_dict(), config.to_dict()


def small_transformer_xl() -> tuple[Weights, dict[str, Any]]:
    config, weights = make_transformer_xl(torch.Generator().manual_seed(0), div_val=2)
    return weights, config


def small_distilbert() -> tuple[Weights, dict[str, Any]]:
    theirs, _, config = make_encoder("DistilBertForMaskedLM")
    return theirs.state_dict(), config


FAMILIES: dict[str, tuple[Callable[[], Any], Callable[..., Model]]] = {
    "transformer-xl": (small_transformer_xl, convert.from_transformer_xl),
    "gpt2": (small_gpt2, convert.from_gpt2),
    "bert": (small_bert, convert.from_bert),
    "llama": (small_llama, convert.from_llama),
    "distilbert": (small_distilbert, convert.from_distilbert),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_no_weight_may_be_missing(family: str) -> None:
    make, take = FAMILIES[family]
    weights, config = make()
    take(weights, config)
    # second names of tied weights
    optional = ("lm_head.weight", "decoder.weight", "decoder.bias", "vocab_projector.weight")
    if family == "llama":
        optional = ()
    for name in weights:
        if name.endswith(optional) and optional:
            continue
        left = {key: weight for key, weight in weights.items() if key != name}
        with refused(InputError):
            take(left, config)


@pytest.mark.parametrize("family", FAMILIES)
def test_no_weight_may_be_left_over(family: str) -> None:
    make, take = FAMILIES[family]
    weights, config = make()
    with refused(InputError, "'adapter.weight'", "no place"):
        take(weights | {"adapter.weight": torch.zeros(2)}, config)
    for key, layers in (("n_layer", 1), ("num_hidden_layers", 1)):
        if key in config:
            with refused(InputError, "no place"):
                take(weights, config | {key: layers})


@pytest.mark.parametrize("family", FAMILIES)
def test_a_weight_of_another_shape_is_refused(family: str) -> None:
    make, take = FAMILIES[family]
    weights, config = make()
    for name in (name for name in weights if "norm" in name.lower() or "wpe" in name):
        with refused(InputError, "(2, 3)", "configuration says"):
            take(weights | {name: torch.zeros(2, 3)}, config)


@pytest.mark.parametrize("family", FAMILIES)
def test_weights_that_are_no_numbers_of_ours_are_refused(family: str) -> None:
    make, take = FAMILIES[family]
    weights, config = make()
    with refused(InputError, "torch.int64"):
        take({name: weight.long() for name, weight in weights.items()}, config)


@pytest.mark.parametrize(
    ("family", "second", "first"),
    [
        ("gpt2", "lm_head.weight", "transformer.wte.weight"),
        ("bert", "cls.predictions.decoder.weight", "bert.embeddings.word_embeddings.weight"),
        ("bert", "cls.predictions.decoder.bias", "cls.predictions.bias"),
        (
            "transformer-xl",
            "crit.out_layers.1.weight",
            "transformer.word_emb.emb_layers.1.weight",
        ),
        ("transformer-xl", "crit.out_projs.2", "transformer.word_emb.emb_projs.2"),
    ],
)
def test_tied_weights_that_differ_are_refused(family: str, second: str, first: str) -> None:
    make, take = FAMILIES[family]
    weights, config = make()
    take(weights | {second: weights[first].clone()}, config)
    with refused(InputError, "differ", second.removeprefix("transformer.")):
        take(weights | {second: weights[first] + 1}, config)


def test_a_bias_for_some_of_query_key_and_value_is_refused() -> None:
    weights, config = small_bert()
    for name in ("query", "key", "value"):
        left = dict(weights)
        del left[f"bert.encoder.layer.0.attention.self.{name}.bias"]
        with refused(InputError, "bias"):
            convert.from_bert(left, config)


@pytest.mark.parametrize(
    ("family", "changes", "words"),
    [
        ("gpt2", {"activation_function": "mish"}, ("unknown activation 'mish'", "gelu_new")),
        ("bert", {"hidden_act": "tanh"}, ("unknown activation 'tanh'", "relu")),
        ("llama", {"hidden_act": "relu2"}, ("unknown activation 'relu2'", "silu")),
        ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, ("scale_attn_by_inverse_layer_idx",)),
        ("gpt2", {"scale_attn_weights": False}, ("scale_attn_weights",)),
        ("gpt2", {"add_cross_attention": True}, ("add_cross_attention",)),
        ("bert", {"is_decoder": True}, ("is_decoder",)),
        (
            "llama",
            {"rope_parameters": {"rope_type": "llama3", "factor": 8.0}},
            ("llama3", "not supported"),
        ),
        ("llama", {"rope_scaling": {"type": "linear", "factor": 2.0}}, ("linear", "not supported")),
        (
            "transformer-xl",
            {"proj_share_all_but_first": False},
            ("proj_share_all_but_first=false is not supported",),
        ),
        ("transformer-xl", {"attn_type": 2}, ("attn_type=2",)),
        ("transformer-xl", {"cutoffs": [7.0, 13.0]}, ("cutoffs", "[7.0, 13.0]")),
        ("transformer-xl", {"cutoffs": 7}, ("cutoffs", "7")),
        ("transformer-xl", {"vocab_size": "23"}, ("'vocab_size'", "'23'")),
        ("transformer-xl", {"div_val": "2"}, ("div_val", "'2'")),
        ("transformer-xl", {"n_layer": None}, ("'n_layer'", "None")),
        ("gpt2", {"n_embd": 15.0}, ("'n_embd'", "15.0")),
        ("gpt2", {"n_layer": True}, ("'n_layer'", "True")),
        ("gpt2", {"n_head": 4}, ("4 heads do not divide d_model 15",)),
        ("bert", {"hidden_size": "6"}, ("'hidden_size'", "'6'")),
        ("llama", {"num_attention_heads": [3]}, ("'num_attention_heads'", "[3]")),
        ("llama", {"head_dim": 2.5}, ("d_head", "2.5")),
    ],
    ids=str,
)
def test_a_configuration_that_is_not_ours_to_represent_is_refused(
    family: str, changes: dict[str, Any], words: tuple[str, ...]
) -> None:
    make, take = FAMILIES[family]
    weights, config = make()
    with refused(ConfigError, *words):
        take(weights, config | changes)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_missing_size_is_named(family: str) -> None:
    make, take = FAMILIES[family]
    weights, config = make()
    del config["vocab_size"]
    with refused(ConfigError, "'vocab_size'", "None"):
        take(weights, config)
