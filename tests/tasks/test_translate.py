"""Does a model learn to translate, go on bit for bit, and get the score that it deserves?"""

from __future__ import annotations

from pathlib import Path
from random import Random
from shutil import copytree, rmtree
from typing import Any

import numpy as np
import pytest
import torch

import parformer as pf
from parformer.cli import main
from parformer.data.batches import Batch
from parformer.errors import ParformerError
from parformer.evaluate.translation import overlap, tokenised_bleu
from parformer.recipe import Recipe, TrainConfig, read_recipe
from parformer.serve.services import Services
from parformer.store.folder import read_model
from parformer.tasks.summarise import Summarise
from parformer.tasks.translate import Translate
from parformer.train.job import train_model
from parformer.train.run import open_run
from parformer.train.schedule import rate

WORDS = {"ein": "a", "Hund": "dog", "läuft": "runs", "rot": "red", "klein": "small", "und": "and"}

SMALL: dict[str, object] = {
    "model.pattern": "sf | scf",
    "model.d_model": 32,
    "model.d_inner": 64,
    "model.n_head": 2,
    "model.max_len": 32,
    "model.dropout": 0.1,
    "data.tokenizer": "character",
    "data.vocab_size": 0,
    "data.pair": "de-en",
    "train.task": "translate",
    "train.precision": "fp32",
    "train.kernels": "plain",
    "train.batch_tokens": 400,
    "train.warmup": 10,
    "train.learning_rate": 5e-3,
    "train.steps": 8,
}


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, random = tmp_path_factory.mktemp("pairs"), Random(1)
    for split, count in (("train", 120), ("valid", 8), ("test", 8)):
        rows = [random.choices(list(WORDS), k=random.randint(1, 3)) for _ in range(count)]
        (folder / f"{split}.de").write_text("".join(" ".join(row) + "\n" for row in rows), "utf-8")
        said = [" ".join(WORDS[word] for word in row) for row in rows]
        (folder / f"{split}.en").write_text("".join(f"{line}\n" for line in said), "utf-8")
    return folder


def recipe(pairs: Path, **changes: object) -> Recipe:
    more = {name.replace("__", "."): value for name, value in changes.items()}
    known = {**SMALL, "data.corpus": str(pairs), **more}
    return read_recipe("transformer-pocket-translation", known)


@pytest.fixture(scope="module")
def run(pairs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "whole"
    train_model(recipe(pairs), folder)
    return folder


def test_training_goes_on_bit_for_bit(run: Path, pairs: Path, tmp_path: Path) -> None:
    train_model(recipe(pairs), tmp_path / "run", until=3)
    outcome = train_model(None, tmp_path / "run")
    assert outcome.finished
    again, whole = (read_model(folder / "model")[1] for folder in (tmp_path / "run", run))
    assert all(torch.equal(again[name], tensor) for name, tensor in whole.items())
    assert (tmp_path / "run/result.json").read_text() == (run / "result.json").read_text()


def test_a_run_says_what_its_translations_are_worth(run: Path) -> None:
    model = pf.load(run / "model")
    assert model.config.pad == model.config.vocab_size - 1
    found = pf.evaluate(model=run, beam=2)
    values = found.to_dict()
    assert found.score.overlap is not None
    assert found.score.overlap.sentences == 8
    assert str(values["signature"]).startswith("nrefs:1|bs:1000|seed:")
    assert values["low"] <= values["high"]
    assert 0 <= float(str(values["tokenised"])) <= 100
    (one,) = pf.generate(model=run, sources=("ein Hund",), beam=2)
    assert isinstance(one.text, str)
    assert "\t" not in one.text
    assert "\n" not in one.text


def test_scores_are_of_the_search_that_is_asked_for(run: Path) -> None:
    asked: dict[str, Any] = {"min_len": 3, "max_len": 4, "no_repeat_ngram": 1}
    found = pf.evaluate(model=run, **asked)
    assert found.score.texts is not None
    for written in found.score.texts.written:
        assert 3 <= len(written) == len({*written}) <= 4
    with pytest.raises(ParformerError, match="min_len 5 exceeds max_len 4; lower it"):
        pf.evaluate(model=run, min_len=5, max_len=4)


def test_other_pairs_need_no_training_split(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "test.tsv").write_text("ein Hund\ta dog\nein Hund\ta dog\n", "utf-8")
    found = pf.evaluate(model=run, data=str(tmp_path), beam=2)
    assert found.score.overlap is not None
    assert found.score.overlap.sentences == 2
    assert found.to_dict() == pf.evaluate(model=run, corpus=str(tmp_path), beam=2).to_dict()
    assert main(["evaluate", str(run), "--data", str(tmp_path), "--split", "valid"]) == 2
    assert "has no split 'valid'; it has test" in capsys.readouterr().err


def test_the_loss_is_that_of_every_token_alone(pairs: Path, run: Path) -> None:
    """Padding counts nothing; smoothing asks all tokens alike; a score has no smoothing."""
    model = pf.load(run / "model")
    smooth = recipe(pairs, train__label_smoothing=0.2)
    given = {name: getattr(model.config, name) for name in ("vocab_size", "pad", "start", "end")}
    task = Translate(smooth.replaced({f"model.{n}": v for n, v in given.items()}))
    rows = [([5, 6, 7], [8, 9]), ([4], [5, 6, 7, 8])]
    pad, start, end = model.config.pad, model.config.start, model.config.end
    every = []
    for source, target in rows:
        logits = model(
            torch.tensor([[start, *target]]), source=torch.tensor([[*source, end]])
        ).logits
        logs, wanted = logits[0].log_softmax(-1), torch.tensor([*target, end])
        own = -logs.gather(1, wanted[:, None])[:, 0]
        every.append(0.8 * own + 0.2 * -logs.mean(-1))
    batch = Batch(
        {
            "tokens": torch.tensor([[start, 8, 9, pad, pad], [start, 5, 6, 7, 8]]),
            "source": torch.tensor([[5, 6, 7, end], [4, end, pad, pad]]),
        },
        torch.tensor([[8, 9, end, -100, -100], [5, 6, 7, 8, end]]),
    )
    torch.testing.assert_close(task.loss(model, batch, None).total, torch.cat(every).mean())


def test_srupp_and_lite_transformers_are_trained_alike(pairs: Path, tmp_path: Path) -> None:
    """What is left open is decided too: precision is tried on a decoder that has no source."""
    sizes = {"model.d_model": 32, "model.d_inner": 32, "data.corpus": str(pairs)}
    data = {"data.tokenizer": "character", "data.vocab_size": 0, "data.pair": "de-en"}
    short = {"train.steps": 2, "train.batch_tokens": 200, "train.kernels": "plain"}
    for name, more in (
        ("srupp-pocket-translation", {"model.d_embed": 16, "model.d_attention": 8}),
        ("lite-pocket-translation", {"model.n_head": 2}),
    ):
        asked = read_recipe(name, {**sizes, **data, **short, **more})
        outcome = train_model(asked, tmp_path / name)
        assert outcome.result is not None
        assert outcome.result.loss_on("test") < 10
        assert len(pf.generate(model=tmp_path / name, sources=("ein Hund",), beam=2)) == 1


def test_a_model_learns_to_translate_words(pairs: Path, tmp_path: Path) -> None:
    changes: dict[str, Any] = {"train__steps": 150, "train__batch_tokens": 600}
    changes |= {"model__dropout": 0.0, "model__d_model": 48, "train__warmup": 30}
    outcome = train_model(recipe(pairs, **changes), tmp_path / "run")
    assert outcome.result is not None
    assert outcome.result.loss_on("test") < 0.6  # a guess has 3
    assert outcome.result.scores["test"].values["chrf"] > 60


def test_a_summariser_is_judged_by_rouge(
    pairs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changes: dict[str, Any] = {"train__task": "summarise", "data__source_words": 2}
    outcome = train_model(recipe(pairs, **changes), tmp_path / "run")
    assert outcome.result is not None
    told = outcome.result.scores["test"].values
    assert told["sentences"] == 8
    assert 0 <= float(str(told["rouge1"])) <= 100
    assert set(told["first_words"]) == {"rouge1", "rouge2", "rougeL"}  # type: ignore[call-overload]
    assert main(["evaluate", str(tmp_path / "run"), str(tmp_path / "run"), "--beam", "2"]) == 0
    shown = capsys.readouterr().out
    assert "first sentence" in shown
    assert "ROUGE-L" in shown
    assert shown.count("cannot be told apart") == 3
    (long,) = pf.generate(model=tmp_path / "run", sources=("ein Hund läuft " * 40,), beam=2)
    (short,) = pf.generate(model=tmp_path / "run", sources=("ein Hund",), beam=2)
    assert long.text == short.text


def test_a_summariser_cuts_what_it_has_no_places_for(pairs: Path, tmp_path: Path) -> None:
    """Both in training and in writing, in tokens; a translator refuses."""
    asked = recipe(pairs, train__task="summarise", model__max_len=32)
    asked = asked.replaced({"model.start": 1, "model.end": 2, "model.pad": 3})
    line = np.array([*range(5, 90), 1, 7, 8, 2])
    ((source, target),) = Summarise(asked).pairs(line)
    assert source.tolist() == list(range(5, 36))
    assert target.tolist() == [7, 8]
    with pytest.raises(ParformerError, match="a pair has 86 tokens on a side"):
        Translate(asked).refuse_long(Translate(asked).pairs(line))
    train_model(recipe(pairs, train__task="summarise"), tmp_path / "run")
    sources = ("ein Hund läuft " * 40, "ein Hund läuft ein Hund läuft e")
    long, short = pf.generate(model=tmp_path / "run", sources=sources, beam=2)
    assert long.text == short.text


def test_two_translators_are_compared(
    run: Path, pairs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train_model(recipe(pairs, train__seed=1, train__steps=2), tmp_path / "other")
    found = pf.evaluate(model=run, against=tmp_path / "other", beam=2)
    assert found.against is not None
    assert [one.measure for one in found.against.differences] == ["BLEU", "chrF"]
    assert found.against.differences[0].first == pytest.approx(found.to_dict()["bleu"])
    train_model(recipe(pairs, train__steps=2, data__pair="en-de"), tmp_path / "back")
    assert main(["evaluate", str(run), str(tmp_path / "back"), "--beam", "2"]) == 2
    assert "have other references (8 and 8," in capsys.readouterr().err


@pytest.mark.parametrize(
    ("kind", "size", "vocabularies"),
    [("unigram", 300, "joint"), ("character", 0, "separate"), ("bpe", 270, "separate")],
)
def test_vocabularies_of_their_own(
    kind: str, size: int, vocabularies: str, pairs: Path, tmp_path: Path
) -> None:
    """Training, going on, writing, scoring and serving all read them from the run."""
    told: dict[str, Any] = {"data__tokenizer": kind, "data__vocab_size": size}
    asked = recipe(pairs, data__vocabularies=vocabularies, **told)
    train_model(asked, tmp_path / "run", until=3)
    assert train_model(None, tmp_path / "run").finished
    opened, model = open_run(tmp_path / "run"), pf.load(tmp_path / "run/model")
    known = opened.need_tokenizer()
    assert model.config.vocab_size == known.target.size
    assert model.config.source_vocab == (known.source.size if vocabularies == "separate" else 0)
    (one,) = pf.generate(model=tmp_path / "run", sources=("ein  Hund",), beam=2)
    tokens = torch.tensor([[*known.source.encode("ein Hund"), model.config.end]])
    found = pf.translate(model, tokens, beam=2, max_len=2 * tokens.shape[1] + 10)
    assert one.text == known.target.decode(found.plain(0))
    scored = pf.evaluate(model=tmp_path / "run", beam=2)
    assert scored.tokenizer == kind
    common = scored.score.texts  # type: ignore[union-attr]
    assert common is not None
    assert "\n".join(common.sources) + "\n" == (pairs / "test.de").read_text("utf-8")
    assert "\n".join(common.references) + "\n" == (pairs / "test.en").read_text("utf-8")
    engine: Any = None  # which translations do without
    serving = Services(model=model, tokenizer=known, engine=engine, name="run", most=9, timeout=9.0)
    served = serving.translate({"text": "ein Hund", "beam": 2})()
    assert served["translations"] == [{"text": one.text}]


def test_small_letters_are_read_as_in_training(pairs: Path, tmp_path: Path) -> None:
    train_model(recipe(pairs, data__lower=True), tmp_path / "run")
    texts = [
        pf.generate(model=tmp_path / "run", sources=(source,), beam=2)[0].text
        for source in ("EIN hund", "ein  Hund")
    ]
    assert texts[0] == texts[1]


def test_scores_are_sacrebleus() -> None:
    import sacrebleu

    texts, references = ["the dog runs fast", "a small cat"], ["the dog runs", "a small red cat"]
    found = overlap(texts, references)
    assert found.bleu == sacrebleu.corpus_bleu(texts, [references]).score
    assert found.chrf == sacrebleu.corpus_chrf(texts, [references]).score
    assert found.low is None


WRITTEN = ['He said: "It\'s a well-known dog."', "the cat, which I saw, can't run (fast)!"]
WANTED = ['He said: "It is a well-known dog."', "The cat, which I saw, can't run fast!"]


def test_tokenised_bleu_is_that_of_the_papers_scripts() -> None:
    """As corpus_bleu of nltk's words, which SRU++ was scored by, the case as it is."""
    from nltk.tokenize import NLTKWordTokenizer
    from nltk.translate.bleu_score import corpus_bleu

    words = NLTKWordTokenizer().tokenize
    theirs = corpus_bleu([[words(line)] for line in WANTED], [words(line) for line in WRITTEN])
    found, how = tokenised_bleu(WRITTEN, WANTED)
    assert found == pytest.approx(100 * theirs)
    assert found != pytest.approx(overlap(WRITTEN, WANTED).bleu, abs=1)
    assert "tok:none|smooth:none" in how
    assert how.endswith("words by nltk's Treebank rules")


def test_words_that_are_cut_already_stay_as_they_are() -> None:
    """As fairseq's files have them, whose signs nltk would cut again; En-De splits compounds."""
    from nltk.translate.bleu_score import corpus_bleu

    written = ["it &apos;s a well-known dog that was there ."]
    wanted = ["it &apos;s the well-known dog that was there ."]
    found, how = tokenised_bleu(written, wanted)
    theirs = corpus_bleu([[wanted[0].split()]], [written[0].split()])
    assert found == pytest.approx(100 * theirs, abs=1e-6)
    assert how.endswith("words between blanks")
    split, how = tokenised_bleu(written, wanted, compounds=True)
    assert split > found
    assert how.endswith("words between blanks, compounds split at hyphens")


def test_the_rate_falls_with_the_root_of_the_step() -> None:
    """The curve of Vaswani et al. 2017, whose highest rate is given."""
    config = TrainConfig(steps=100, warmup=10, learning_rate=0.3, schedule="inverse-sqrt")
    for step in range(100):
        n = step + 1
        noam = min(n**-0.5, n * 10**-1.5)
        assert rate(step, config) == pytest.approx(0.3 * noam / 10**-0.5)


@pytest.mark.parametrize(
    ("model", "changes", "problem"),
    [
        ("pocket", {"data.pair": "de-en"}, "needs a model with an encoder, and '.*' has none"),
        (
            "lite-pocket-translation",
            {},
            "a model with an encoder, .*, needs to know which texts are a pair; give --pair",
        ),
        (
            "lite-pocket-translation",
            {"data.pair": "de-en", "train.accumulate": 2},
            "train.accumulate 2 would cut batches of pairs unevenly",
        ),
    ],
)
def test_what_cannot_be_trained_is_refused(
    model: str, changes: dict[str, object], problem: str
) -> None:
    with pytest.raises(ParformerError, match=problem):
        Translate(read_recipe(model, {"train.task": "translate", **changes}))


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"model.max_len": 8}, "tokens on a side, and the model 8 places"),
        ({"data.tokenizer": "wordpiece"}, "has no tokens of their own for tab and line end"),
        (
            {"data.tokenizer": "word", "data.vocabularies": "separate"},
            "a word tokenizer does not give pairs back as they were; take one of bpe",
        ),
        ({"data.pair": "de-fr"}, "has no pair de-fr"),
        ({"data.ratio": 0.5}, "data.ratio is at least 1"),
        ({"train.label_smoothing": 1.0}, "train.label_smoothing is a share from 0 to below 1"),
    ],
)
def test_pairs_that_do_not_fit_are_refused(
    pairs: Path, tmp_path: Path, changes: dict[str, object], problem: str
) -> None:
    with pytest.raises(ParformerError, match=problem) as caught:
        train_model(recipe(pairs, **changes), tmp_path / "run")
    assert "\n" not in str(caught.value)


def test_the_command_line_translates(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given, written = tmp_path / "in.txt", tmp_path / "out.txt"
    given.write_text("ein Hund\nHund läuft\n", "utf-8")
    assert main(["generate", str(run), "--input", str(given), "--output", str(written)]) == 0
    assert written.read_text("utf-8").count("\n") == 2
    assert main(["generate", str(run), "--source", "ein Hund", "--beam", "2"]) == 0
    assert capsys.readouterr().out.count("\n") == 1
    assert main(["evaluate", str(run), "--beam", "1"]) == 0
    shown = capsys.readouterr().out
    assert "BLEU nrefs:1|" in shown
    assert "BLEU, tokenised nrefs:1|case:mixed|eff:no|tok:none|smooth:none|" in shown
    for arguments, problem in (
        (["generate", str(run), "--prompt", "x"], "translates; give it a --source"),
        (["generate", str(run), "--source", " "], "source 1 is empty"),
        (["generate", str(run), "--source", "a", "--beam", "0"], "beam must be at least 1, got 0"),
        (["generate", str(run), "--source", "a " * 40], "source 1 has 79 tokens, and"),
        (["generate", str(run), "--input", str(tmp_path / "no")], "cannot read"),
        (["generate", str(run), "--source", "a", "--input", str(given)], "give one of them"),
    ):
        assert main(arguments) == 2
        assert problem in capsys.readouterr().err


def test_a_vocabulary_without_an_end_is_refused(
    pairs: Path, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bare = Translate(recipe(pairs, model__start=-1, model__end=-1))
    with pytest.raises(ParformerError, match="does not say which token ends a text"):
        bare.batches(np.arange(9))
    model = pf.load(run / "model")
    unmarked = pf.build(model.config.replaced(start=-1, end=-1))
    copytree(run, tmp_path / "run")
    rmtree(tmp_path / "run/model")
    unmarked.save(tmp_path / "run/model", (run / "model/tokenizer.json").read_text("utf-8"))
    assert main(["generate", str(tmp_path / "run"), "--source", "ein"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "says neither how texts end nor what stands for no token (end -1, pad" in line


def test_bad_pairs_take_one_line(
    pairs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is read or learned before a translator knows its pairs."""
    place = tmp_path / "pairs"
    place.mkdir()
    for name, text in (("train", "a\nb\n"), ("valid", "a\n\nb\n"), ("test", "a\n")):
        for side in ("de", "en"):
            (place / f"{name}.{side}").write_text(text if side == "en" else text.strip("\n") + "\n")
    words = ["train", "transformer-pocket-translation", "--steps", "2", "--run"]
    for run, more, problem in (
        ("one", ["--data", str(place)], "needs to know which texts are a pair; give --pair"),
        ("two", ["--data", str(place), "--pair", "de-en"], "the first in line 2, and would count"),
    ):
        assert main([*words, str(tmp_path / run), *more]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert problem in line
