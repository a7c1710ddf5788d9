"""Does a training start from what somebody trained, and learn as it is told to?"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import safetensors.torch
import torch
import transformers
from torch import Tensor

import parformer as pf
from parformer.cli import main
from parformer.config import ModelConfig
from parformer.errors import ConfigError, FolderError
from parformer.model import build, load
from parformer.recipe import TrainConfig
from parformer.train.optimizers import freeze, make_optimizer, set_learning_rate
from parformer.train.run import read_run
from parformer.train.start import open_start, start_model
from tests.tasks.office import SMALL, write_reviews

NASTY = (
    "Hello, WORLD! don't-stop…",
    "Ünïcödé naïve café Straße İstanbul ﬁne",
    "漢字とかな 한국어 العربية हिन्दी עברית",
    "tabs\tand\nnew lines\r\n   and   blanks\u00a0\u2003\u200b",
    "zero\u0000byte, control\u0007, soft\u00adhyphen, \ufeffmark \ufffd",
    "emoji 👩‍👩‍👧 🇩🇪 and a\u0301 combining z\u0327\u0308",
    "[CLS] [SEP] [MASK] [UNK] [PAD] ##ing",
    "x" * 250 + " $1,000.50 (50%) <b>&amp;</b> http://a.b/c?d=e#f _under_score",
    "",
    " ",
)
PIECES = [
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "[MASK]",
    "hello",
    "world",
    "##ing",
    "the",
    "don",
    "stop",
]


def write_folder(folder: Path, kind: str, *, lower: bool = True, as_json: bool = False) -> Path:
    """A tiny model of Hugging Face's with random weights, and its vocabulary."""
    letters = sorted({letter for text in NASTY for letter in text.lower() + text if letter.strip()})
    letters = [one for one in letters if len(one) == 1 and one.isprintable()]
    words = list(dict.fromkeys([*PIECES, *letters, *(f"##{one}" for one in letters)]))
    folder.mkdir()
    torch.manual_seed(0)
    common = {"vocab_size": len(words), "max_position_embeddings": 32}
    config = {
        "bert": lambda: transformers.BertConfig(
            **common, hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
            intermediate_size=24,
        ),
        "distilbert": lambda: transformers.DistilBertConfig(
            **common, dim=16, n_layers=2, n_heads=2, hidden_dim=24
        ),
        "albert": lambda: transformers.AlbertConfig(
            **common, hidden_size=16, embedding_size=8, num_hidden_layers=2, num_attention_heads=2,
            intermediate_size=24,
        ),
        "mobilebert": lambda: transformers.MobileBertConfig(
            **common, hidden_size=16, embedding_size=8, num_hidden_layers=2, num_attention_heads=2,
            intermediate_size=24, intra_bottleneck_size=8, true_hidden_size=8,
            classifier_activation=False,
        ),
    }[kind]()  # fmt: skip
    transformers.AutoModel.from_config(config).save_pretrained(folder)
    (folder / "vocab.txt").write_text("".join(f"{word}\n" for word in words))
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"do_lower_case": lower, "tokenizer_class": "BertTokenizer"})
    )
    if as_json:
        transformers.BertTokenizer.from_pretrained(folder).save_pretrained(folder)
        assert (folder / "tokenizer.json").is_file()
    return folder


@pytest.mark.parametrize("lower", [True, False])
@pytest.mark.parametrize("as_json", [True, False])
def test_texts_are_cut_as_transformers_cuts_them(
    lower: bool, as_json: bool, tmp_path: Path
) -> None:
    folder = write_folder(tmp_path / "bert", "bert", lower=lower, as_json=as_json)
    theirs = transformers.BertTokenizer.from_pretrained(folder)
    ours = open_start(folder).tokenizer
    expected = [theirs(text, add_special_tokens=False)["input_ids"] for text in NASTY]
    assert ours.encode_all(NASTY) == expected
    assert [ours.encode(text) for text in NASTY] == expected
    assert (ours.special("cls"), ours.special("pad")) == (theirs.cls_token_id, theirs.pad_token_id)
    for text in NASTY[:5]:
        again = theirs(text, add_special_tokens=False, return_offsets_mapping=True)
        spans = [(start, end) for _, start, end in ours.pieces(text)]
        assert spans == again["offset_mapping"]


@pytest.mark.parametrize("kind", ["bert", "distilbert", "albert", "mobilebert"])
def test_a_folder_of_hugging_faces_gives_its_numbers(kind: str, tmp_path: Path) -> None:
    folder = write_folder(tmp_path / kind, kind)
    theirs = transformers.AutoModel.from_pretrained(folder, dtype=torch.float32).eval()
    tokens = torch.tensor([[2, 5, 6, 3, 7, 3], [2, 8, 3, 0, 0, 0]])
    padding = torch.tensor([[1] * 6, [1, 1, 1, 0, 0, 0]])
    ours = open_start(folder).model
    with torch.no_grad():
        expected = theirs(input_ids=tokens, attention_mask=padding)[0]
        found = ours(tokens, padding=padding.bool()).hidden
    torch.testing.assert_close(found[0], expected[0], atol=2e-5, rtol=1e-4)
    torch.testing.assert_close(found[1, :3], expected[1, :3], atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("kind", ["bert", "distilbert", "albert", "mobilebert"])
def test_a_model_of_hugging_faces_is_fine_tuned(kind: str, tmp_path: Path) -> None:
    folder = write_folder(tmp_path / kind, kind)
    data = write_reviews(tmp_path / "reviews.csv", 40)
    run = tmp_path / "run"
    assert main(
        ["train", "--start", str(folder), "--task", "classify", "--data", str(data),
         "--text", "body", "--label", "stars", "--run", str(run), "--epochs", "1",
         "--set", "train.batch=8", "--set", "train.precision=fp32"]
    ) == 0  # fmt: skip
    recipe = read_run(run)
    assert recipe.model.labels == ("1", "5")
    assert recipe.train.start == str(folder)
    assert recipe.train.warmup == round(0.1 * recipe.train.steps)
    assert recipe.train.learning_rate == pytest.approx(3e-5 * 768 / 16, rel=0.1)
    first = open_start(folder).model
    moved = dict(load(run / "model").named_parameters())
    near = [(w - moved[n]).detach().abs().max() for n, w in first.named_parameters() if n in moved]
    assert 0 < float(max(near)) < 0.05  # not far from where it started
    told = pf.predict(model=run, texts=("the film was good",))
    assert sum(told.predictions[0].probabilities.values()) == pytest.approx(1.0)


def test_weights_in_several_files_are_read(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "bert", "bert")
    whole = open_start(folder).model
    weights = safetensors.torch.load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = sorted(weights)
    parts = {"one.safetensors": names[::2], "two.safetensors": names[1::2]}
    for file, some in parts.items():
        safetensors.torch.save_file({name: weights[name] for name in some}, folder / file)
    index = {"weight_map": {name: file for file, some in parts.items() for name in some}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    again = open_start(folder).model
    assert all(
        torch.equal(w, dict(again.named_parameters())[n]) for n, w in whole.named_parameters()
    )
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {"a": "../b"}}')
    with pytest.raises(FolderError, match="names files of other folders"):
        open_start(folder)


def test_heads_of_other_tasks_are_left_behind(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "bert", "bert")
    bare = open_start(folder).model
    file = folder / "model.safetensors"
    weights = safetensors.torch.load_file(file)
    more = {"classifier.weight": torch.zeros(2, 16), "qa_outputs.bias": torch.zeros(2)}
    safetensors.torch.save_file(weights | more, file)
    again = dict(open_start(folder).model.named_parameters())
    assert set(again) == {name for name, _ in bare.named_parameters()}


def test_sentence_encoders_say_how_they_pool(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "bert", "bert")
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text('{"pooling_mode_mean_tokens": true}')
    model = open_start(folder).model
    tokens, there = torch.tensor([[2, 5, 3, 0]]), torch.tensor([[True, True, True, False]])
    out = model(tokens, padding=there)
    torch.testing.assert_close(out.pooled, out.hidden[:, :3].mean(1))
    torch.testing.assert_close(model(tokens).pooled, model(tokens).hidden.mean(1))


def test_what_cannot_be_started_from_is_refused(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "bert", "bert")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"model_type": "t5"}))
    with pytest.raises(FolderError, match="holds a model of the kind 't5'; known: parformer, gpt2"):
        open_start(folder)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(FolderError, match="could run code and is not read"):
        open_start(folder)
    (folder / "pytorch_model.bin").rename(folder / "model.safetensors")
    (folder / "vocab.txt").rename(folder / "words.txt")
    with pytest.raises(FolderError, match=r"neither tokenizer.json nor vocab.txt"):
        open_start(folder)


def test_a_start_of_another_vocabulary_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_folder(tmp_path / "bert", "bert")
    with (folder / "vocab.txt").open("a") as file:
        file.write("more\nwords\n")
    data = write_reviews(tmp_path / "reviews.csv", 40)
    words = ["train", "--start", str(folder), "--task", "classify", "--data", str(data)]
    assert main([*words, "--text", "body", "--label", "stars", "--run", str(tmp_path / "run")]) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert "do not belong together; copy the tokenizer that it was trained with" in last
    assert not (tmp_path / "run").exists()


def test_a_start_reads_with_its_own_tokenizer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_folder(tmp_path / "bert", "bert")
    data = write_reviews(tmp_path / "reviews.csv", 40)
    words = ["train", "--start", str(folder), "--task", "classify", "--data", str(data)]
    assert main([*words, "--tokenizer", "unigram", "--run", str(tmp_path / "run")]) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert "data.tokenizer 'unigram' means nothing beside --start, which brings its own" in last


def test_weights_that_changed_meanwhile_are_refused(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "bert", "bert")
    start = open_start(folder)
    train = TrainConfig(start=str(folder), start_identity=start.identity())
    shape = start.config
    assert start_model(shape, train) is not None
    changed = TrainConfig(start=str(folder), start_identity="0" * 64)
    with pytest.raises(FolderError, match="are not those that the run was started with"):
        start_model(shape, changed)
    with pytest.raises(ConfigError, match=r"has shape \(32, 16\) for 'embedding.positions'"):
        start_model(shape.replaced(max_len=16), train)


def test_a_head_is_taken_along_for_the_same_labels_alone(tmp_path: Path) -> None:
    values = {"family": "bert", "pattern": "sf", "vocab_size": 30, "d_model": 16, "n_head": 2}
    more = {"d_inner": 24, "max_len": 16, "head": "none", "label_head": "class"}
    config = ModelConfig.from_dict(values | more | {"labels": ["a", "b"]})
    tokenizer = open_start(write_folder(tmp_path / "bert", "bert")).tokenizer
    model = build(config, seed=5)
    model.save(tmp_path / "model", tokenizer.to_json())
    train = TrainConfig(start=str(tmp_path / "model"))
    own = model.label_head.out.weight  # type: ignore[union-attr, operator]
    for shape, same in (
        (config, True),
        (config.replaced(labels=("b", "a")), False),
        (config.replaced(labels=("a", "b", "c")), False),
        (config.replaced(labels=(), label_head="score"), False),
    ):
        found = start_model(shape, train)
        assert torch.equal(found.blocks[0].qkv.weight, model.blocks[0].qkv.weight)
        theirs = found.label_head.out.weight  # type: ignore[union-attr]
        assert (theirs.shape == own.shape and torch.equal(theirs, own)) == same


# How it learns


def small() -> ModelConfig:
    values = {"family": "bert", "pattern": "(sf)x2", "vocab_size": 30, "d_model": 16, "n_head": 2}
    more = {"d_inner": 24, "max_len": 16, "head": "none", "label_head": "class"}
    return ModelConfig.from_dict(values | more | {"labels": ["a", "b"], "label_dropout": 0.0})


def one_step(config: TrainConfig) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    model = build(small()).train()
    freeze(model, config.frozen)
    before = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    optimizer = make_optimizer(model, config)
    out = model(torch.arange(12).view(2, 6))
    torch.nn.functional.cross_entropy(out.label_logits, torch.tensor([0, 1])).backward()
    set_learning_rate(optimizer, config.learning_rate)
    optimizer.step()
    return before, {name: weight.detach() for name, weight in model.named_parameters()}


def test_lower_blocks_learn_more_slowly() -> None:
    """Adam's first step moves every weight by its rate."""
    config = TrainConfig(optimizer="adamw", learning_rate=0.01, layer_decay=0.5, weight_decay=0.0)
    before, after = one_step(config)
    heights = {"label_head.out.bias": 5, "pooler.weight": 5, "blocks.3.inner.weight": 4}
    for name, height in (heights | {"blocks.0.qkv.weight": 1, "embedding.norm.weight": 0}).items():
        moved = (after[name] - before[name]).abs().max()
        assert float(moved) == pytest.approx(0.01 * 0.5 ** (5 - height), rel=0.02), name


def test_frozen_blocks_stay_as_they_are() -> None:
    before, after = one_step(TrainConfig(optimizer="adamw", learning_rate=0.01, frozen=2))
    same = {name for name in before if torch.equal(before[name], after[name])}
    assert all(name.startswith(("embedding.", "blocks.0.", "blocks.1.")) for name in same)
    assert {"blocks.1.out.weight", "embedding.words.tables.0"} <= same
    assert "blocks.2.qkv.weight" not in same


def test_several_seeds_give_a_median_and_a_range(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = write_reviews(tmp_path / "reviews.csv", 40)
    words = ["train", "bert-pocket", "--task", "classify", "--data", str(data), "--text", "body"]
    words += ["--label", "stars", "--epochs", "1", *SMALL, "--set", "train.batch=8"]
    words += ["--seeds", "3", "--try", "learning_rate=1e-3,2e-3", "--run", str(tmp_path / "many")]
    assert main([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["several"]
    assert main(words) == 0  # all of it is done
    told = capsys.readouterr().out.splitlines()
    assert sum(line.startswith("test   majority: accuracy") for line in told) == 1
    assert [one["changes"] for one in found["tried"]].count(["train.learning_rate=0.001"]) == 1
    for one in found["tried"]:
        scores = sorted(
            json.loads((Path(run) / "result.json").read_text())["valid"]["metrics"]["accuracy"]
            for run in one["runs"]
        )
        assert one["valid"]["accuracy"] == {
            "median": scores[1], "low": scores[0], "high": scores[2],
        }  # fmt: skip
    assert found["best"] in found["tried"][0]["runs"]
    assert len({read_run(Path(run)).train.seed for run in found["tried"][0]["runs"]}) == 3
