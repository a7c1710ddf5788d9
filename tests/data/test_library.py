"""Are Hugging Face's tokenizers read as their own packages do, and learned alike each time?"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tokenizers
from transformers import PreTrainedTokenizerFast

from parformer.cli import main
from parformer.data.characters import Bytes, Characters
from parformer.data.library import OWN, Library, read_library
from parformer.data.tokenizers import KINDS, read_foreign, read_tokenizer, train_tokenizer
from parformer.data.words import Words
from parformer.errors import ConfigError, FolderError
from tests.data.test_tokenizers import Texts

TEXT = "the cat sat on the mat, the dog did not sit; naïve Ünïcode 戦場の 🙂 don't stop\n" * 40
LEARNED = pytest.mark.parametrize("kind", ["bpe", "wordpiece", "unigram"])


def corpus(chunk: int = 7) -> Texts:
    return Texts(train=TEXT, valid="the cat\n", chunk=chunk)


def bert_file(folder: Path) -> Path:
    """A tokenizer.json as BERT's is: lower case, [CLS] and [SEP] around, padded and cut."""
    made = tokenizers.Tokenizer(tokenizers.models.WordPiece(unk_token="[UNK]"))
    made.normalizer = tokenizers.normalizers.BertNormalizer(lowercase=True)
    made.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    made.decoder = tokenizers.decoders.WordPiece()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    trainer = tokenizers.trainers.WordPieceTrainer(
        vocab_size=120, special_tokens=special, show_progress=False
    )
    made.train_from_iterator([TEXT], trainer)
    made.post_processor = tokenizers.processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    made.enable_truncation(8)
    made.enable_padding()
    made.save(str(folder / "bert.json"))
    return folder / "bert.json"


def test_a_foreign_file_gives_the_tokens_of_its_own_packages(tmp_path: Path) -> None:
    file = bert_file(tmp_path)
    ours = read_foreign(file)
    theirs = PreTrainedTokenizerFast(tokenizer_file=str(file))
    text = "The cat sat, the DOG did not sit at all; naïve 戦場 zebra [MASK] mat"
    assert ours.encode(text) == theirs.encode(text, add_special_tokens=False)
    assert ours.size == len(theirs)
    assert ours.decode(ours.encode("the cat sat")) == "the cat sat"
    names = {"pad": 0, "unk": 1, "cls": 2, "sep": 3, "mask": 4}
    assert {name: ours.special(name) for name in names} == names
    assert not ours.has("bos")
    with pytest.raises(ConfigError, match="hf tokenizer has no <bos>"):
        ours.special("bos")


def test_a_foreign_file_is_kept_with_the_run(tmp_path: Path) -> None:
    ours = read_foreign(bert_file(tmp_path))
    again = read_tokenizer(ours.to_json(), "here")
    assert again == ours
    assert isinstance(again, Library)
    assert again.encode("the cat") == ours.encode("the cat")


def test_a_long_text_is_neither_padded_nor_cut(tmp_path: Path) -> None:
    ours = read_foreign(bert_file(tmp_path))
    tokens = [int(t) for part in ours.encode_chunks([TEXT.encode()]) for t in part]
    assert tokens == ours.encode(TEXT)
    assert len(tokens) > 500
    assert 0 not in tokens


def test_models_are_trained_and_read_with_a_foreign_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PARFORMER_CACHE", str(tmp_path / "cache"))
    bert_file(tmp_path)
    Path("text.txt").write_text(TEXT * 3)
    small = ["model.d_model=8", "model.d_inner=8", "model.n_head=2", "train.batch=2"]
    sets = [word for one in small for word in ("--set", one)]
    command = ["train", "pocket", "--corpus", "text.txt", "--tokenizer", "bert.json", "--run", "r"]
    assert main([*command, "--steps", "2", "--no-beside", *sets]) == 0
    Path("bert.json").unlink()  # the run has its own
    assert main(["train", "--run", "r"]) == 0
    assert main(["evaluate", "r", "--no-beside", "--json"]) == 0
    assert main(["generate", "r", "--prompt", "the cat", "--tokens", "3"]) == 0


@LEARNED
def test_the_same_text_gives_the_same_vocabulary(kind: str) -> None:
    first = train_tokenizer(kind, corpus(), vocab_size=300)  # type: ignore[arg-type]
    for chunk in (1, 1000):
        again = train_tokenizer(kind, corpus(chunk), vocab_size=300)  # type: ignore[arg-type]
        assert again == first
    assert first.size <= 300


@pytest.mark.parametrize("kind", ["wordpiece", "unigram"])
def test_special_tokens_come_first_and_from_no_text(kind: str) -> None:
    found = train_tokenizer(kind, corpus(), vocab_size=120)  # type: ignore[arg-type]
    assert [found.special(token.strip("<>")) for token in OWN] == list(range(7))
    assert not set(found.encode("the <mask> and <pad> </s> cat")) & {0, 2, 3, 4, 5, 6}
    assert found.decode(found.encode("the cat sat on the mat")).strip() == "the cat sat on the mat"
    assert found.special("unk") in found.encode("ж" * 3)


@LEARNED
def test_the_library_itself_reads_what_was_learned(kind: str) -> None:
    found = train_tokenizer(kind, corpus(), vocab_size=300)  # type: ignore[arg-type]
    library = tokenizers.Tokenizer.from_str(json.dumps(found.to_dict()["library"]))
    text = "the cat did not sit on the naïve mat"
    assert found.encode(text) == library.encode(text, add_special_tokens=False).ids
    again = read_tokenizer(found.to_json(), "here")
    assert again == found
    assert again.encode(TEXT) == found.encode(TEXT)


def test_a_model_of_another_kind_is_refused() -> None:
    values = json.loads(train_tokenizer("unigram", corpus(), vocab_size=60).to_json())  # type: ignore[arg-type]
    for changed in ({"kind": "wordpiece"}, {"library": {"model": {}}}, {"library": {}}):
        with pytest.raises(FolderError, match="damaged"):
            read_tokenizer(json.dumps(values | changed), "here")
    with pytest.raises(ValueError, match="refuses it"):
        read_library("{}")


def test_what_is_no_tokenizer_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text("[]")
    with pytest.raises(ConfigError, match=r"is no tokenizer\.json"):
        read_foreign(tmp_path / "x.json")
    with pytest.raises(ConfigError, match="No such file"):
        read_foreign(tmp_path / "y.json")
    with pytest.raises(ConfigError, match="unknown tokenizer"):
        train_tokenizer("hf", corpus())  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="min_count means nothing"):
        train_tokenizer("unigram", corpus(), min_count=2)  # type: ignore[arg-type]


def test_special_tokens_of_the_plain_kinds() -> None:
    assert [Bytes().has(name) for name in ("unk", "mask", "eos")] == [False] * 3
    assert Bytes().special("mask") == 256
    words = Words(["<eos>", "the", "<unk>", "<mask>"])
    assert (words.special("eos"), words.special("unk"), words.special("mask")) == (0, 2, 4)
    assert Characters("ab", unknown=True).special("unk") == 2
    assert Characters("ab", unknown=True).special("mask") == 3
    with pytest.raises(ConfigError, match="character tokenizer has no <eos>"):
        Characters("ab", unknown=True).special("eos")
    with pytest.raises(ConfigError, match="unknown special token"):
        Bytes().special("msak")


def test_every_kind_can_be_asked_for() -> None:
    assert set(KINDS) == {
        *("byte", "used-bytes", "character", "word", "bpe", "wordpiece", "unigram", "hf", "sides")
    }
