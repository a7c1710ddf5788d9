"""How does a model become a folder that Hugging Face's transformers loads?

One that others know by name (GPT-2, Llama, BERT, ALBERT, MobileBERT) is written as that, with no
code at all. Any other brings `modeling_parformer.py`, which computes by the package parformer.
"""

# b batch, t time

from __future__ import annotations

import contextlib
import io
import json
import logging
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from parformer import __version__
from parformer.costs import cost
from parformer.errors import ConfigError, need
from parformer.evaluate.perplexity import at_rest
from parformer.export.known import Known, find_known
from parformer.export.parity import Differs, difference, lengths_of, texts
from parformer.export.words import settings, to_library
from parformer.generate.writing import Sampling, generate
from parformer.model import Model
from parformer.store.files import Json
from parformer.store.folder import CONFIG, TOKENIZER, WEIGHTS, json_bytes, write_folder
from parformer.train.run import Opened, read_result

FORMAT = "parformer-hub-1"
OWN_TOKENIZER = "parformer_tokenizer.json"
"""The tokenizer in Parformer's own words, beside the library's."""
CODE = "modeling_parformer"
HEADS = {
    "ParformerForCausalLM": "AutoModelForCausalLM",
    "ParformerForMaskedLM": "AutoModelForMaskedLM",
    "ParformerForSequenceClassification": "AutoModelForSequenceClassification",
    "ParformerForSeq2SeqLM": "AutoModelForSeq2SeqLM",
}
GREEDY = 50


def make_files(model: Model, opened: Opened) -> Json:
    """Everything that the folder holds."""
    with quiet_library():
        known = find_known(model)
    if known is not None:
        config: Json = {"architectures": [known.architecture], "dtype": "float32", **known.config}
        files: Json = {CONFIG: json_bytes(config), WEIGHTS: known.weights}
    else:
        files = {
            CONFIG: json_bytes(own_config(model)),
            WEIGHTS: {f"model.{n}": t.detach().clone() for n, t in model.state_dict().items()},
            f"{CODE}.py": Path(__file__).with_name("modeling.py").read_bytes(),
        }
    if opened.tokenizer is not None:
        limit = model.config.max_len if model.config.numbered else 0
        files[TOKENIZER] = to_library(opened.tokenizer).encode()
        files["tokenizer_config.json"] = json_bytes(settings(opened.tokenizer, limit))
        files[OWN_TOKENIZER] = opened.tokenizer.to_json().encode()
    files["README.md"] = card(model, opened, known).encode()
    return files


def own_config(model: Model) -> Json:
    """`config.json` of a model that brings its code."""
    config = model.config
    name = head_name(model)
    told: Json = {
        "model_type": "parformer",
        "architectures": [name],
        "auto_map": {
            "AutoConfig": f"{CODE}.ParformerConfig",
            HEADS[name]: f"{CODE}.{name}",
        },
        "dtype": "float32",
        "vocab_size": config.vocab_size,
        "hidden_size": config.d_model,
        "num_hidden_layers": len(config.pattern),
        "num_attention_heads": config.n_head,
        "is_encoder_decoder": model.encoder is not None,
        "tie_word_embeddings": False,
        "parformer": config.to_dict(),
    }
    marks = {"decoder_start_token_id": config.start, "bos_token_id": config.start}
    marks |= {"eos_token_id": config.end, "pad_token_id": config.pad}
    told |= {name: token for name, token in marks.items() if token >= 0}
    if config.labels:
        told["id2label"] = {str(n): label for n, label in enumerate(config.labels)}
        told["label2id"] = {label: n for n, label in enumerate(config.labels)}
    return told


def head_name(model: Model) -> str:
    config = model.config
    if config.label_head in ("class", "score"):
        return "ParformerForSequenceClassification"
    if model.encoder is not None:
        return "ParformerForSeq2SeqLM"
    if config.head == "masked":
        return "ParformerForMaskedLM"
    if config.causal and config.head == "lm":
        return "ParformerForCausalLM"
    raise ConfigError(
        f"a model with head {config.head!r} and label_head {config.label_head!r} has no class "
        "in transformers that loads it; export one that writes, masks, translates or classifies"
    )


def card(model: Model, opened: Opened, known: Known | None) -> str:
    """What a reader should know: what it is, how good, how to repeat and to use it."""
    config, price = model.config, cost(model.config)
    auto = "AutoModel" if known else HEADS[head_name(model)]
    if known is not None and known.architecture.endswith("LMHeadModel"):
        auto = "AutoModelForCausalLM"
    trust = "" if known else ", trust_remote_code=True"
    lines = [
        *("---", "library_name: transformers", "tags:", "- parformer", "---", ""),
        f"# {opened.folder.resolve().parent.name or 'A model'}",
        "",
        f"Made with Parformer {__version__}: `{config.pattern}`, family {config.family}, width "
        f"{config.d_model}, {price.parameters:,} parameters.",
        "",
        f"    from transformers import {auto}",
        f'    model = {auto}.from_pretrained("FOLDER"{trust})',
        "",
    ]
    if known is None:
        lines += ["It needs `pip install parformer`, whose code computes it.", ""]
    result = None if opened.recipe is None else read_result(opened.folder.parent)
    if result is not None:
        lines += ["## Figures", "", "As its run measured them:", "", "```json"]
        lines += [json.dumps(result.to_dict(), indent=2), "```", ""]
    if opened.recipe is not None:
        import tomli_w

        recipe = tomli_w.dumps(opened.recipe.to_dict())
        lines += ["## How to repeat it", "", "`parformer train recipe.toml` with this recipe:"]
        lines += ["", "```toml", recipe.strip(), "```", ""]
    return "\n".join(lines)


def write(path: Path, opened: Opened, model: Model) -> tuple[Json, Json]:
    """Write the folder if transformers computes what the model computes."""
    need("transformers", extra="hub")
    files = make_files(model, opened)
    known = f"{CODE}.py" not in files
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "hub"
        write_folder(folder, FORMAT, files)
        with quiet_library():
            compared = check(model, folder, known=known)
    write_folder(path, FORMAT, files)
    return compared, {}


def check(model: Model, folder: Path, *, known: bool) -> Json:
    """Refuse a folder from which transformers makes another model."""
    import transformers

    told = json.loads((folder / CONFIG).read_text("utf-8"))
    name = told["architectures"][0]
    auto = getattr(transformers, name if known else HEADS[name])
    theirs = auto.from_pretrained(folder, **({} if known else {"trust_remote_code": True})).eval()
    worst, compared = 0.0, []
    limit = model.config.max_len if model.config.numbered or not model.config.causal else 0
    with at_rest(model):
        for batch in (1, 3):
            for time in lengths_of(model, limit):
                tokens = texts(model, batch, time)
                what = f"a batch of {batch} × {time} tokens"
                worst = max(worst, difference(*both(model, theirs, tokens), what))
                compared.append(what)
        count = check_greedy(model, theirs) if model.config.head == "lm" else 0
    return {
        "architecture": name,
        "largest_difference": worst,
        "compared": compared,
        "greedy_tokens_equal": count,
    }


def both(model: Model, theirs: Any, tokens: torch.Tensor) -> tuple[Any, Any]:
    """The same numbers from both."""
    if model.encoder is not None:
        mask = torch.ones_like(tokens)
        out = model(tokens, model.initial_state(len(tokens), 2**31), source=model.encode(tokens))
        told = theirs(input_ids=tokens, attention_mask=mask, decoder_input_ids=tokens).logits
        return out.logits.numpy(), told.numpy()
    if model.config.causal and model.config.head == "lm":
        memory = model.config.memory or model.config.step_len
        out = model(tokens, model.initial_state(len(tokens), memory))
    else:
        out = model(tokens)
    told = theirs(tokens)
    if "logits" not in told and "prediction_logits" not in told:
        return out.hidden.numpy(), told.last_hidden_state.numpy()
    ours = out.label_logits if out.label_logits is not None else out.logits
    assert ours is not None
    given = told["logits"] if "logits" in told else told["prediction_logits"]
    return ours.numpy(), given.numpy()


def check_greedy(model: Model, theirs: Any) -> int:
    """The same tokens from `generate`, for a model that writes on."""
    if model.encoder is not None:
        return 0
    room = min(GREEDY, model.config.max_len - 4) if model.config.numbered else GREEDY
    prompt = texts(model, 1, 4)
    (ours,) = generate(model, [prompt[0].tolist()], room, sampling=Sampling(temperature=0))
    told = theirs.generate(prompt, max_new_tokens=room, do_sample=False)[0, 4:].tolist()
    if told != ours:
        raise Differs("transformers writes other tokens than the model; nothing was written")
    return len(ours)


@contextlib.contextmanager
def quiet_library() -> Iterator[None]:
    """Transformers speaks of everything that it does."""
    logger = logging.getLogger("transformers")
    level = logger.level
    out = contextlib.redirect_stdout(io.StringIO())
    with warnings.catch_warnings(), out, contextlib.redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            logger.setLevel(level)
