"""Does transformers load what was exported, compute the same, and do we read it back?"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
from torch.testing import assert_close

import parformer as pf
from parformer.cli import main
from parformer.data.characters import Bytes, Characters, UsedBytes
from parformer.data.words import Words
from parformer.errors import ConfigError, FolderError
from parformer.events import Watch
from parformer.export.known import find_known
from parformer.export.pushing import push
from parformer.export.request import without_codes
from parformer.export.words import to_library
from parformer.model import Model, build
from tests.conftest import lively, small_config
from tests.native.test_quantized import coded

transformers = pytest.importorskip("transformers")


def make(family: str, pattern: str, **changes: Any) -> Model:
    sizes = {"d_model": 16, "n_head": 2, "vocab_size": 256, "pattern": pattern, "max_len": 64}
    return lively(build(small_config(family, **(sizes | changes))))


def exported(model: Model, tmp_path: Path, capsys: Any) -> tuple[Path, dict[str, Any]]:
    model.save(tmp_path / "model", Bytes().to_json())
    folder = tmp_path / "hub"
    assert main(["export", str(tmp_path / "model"), "--hub", str(folder), "--json"]) == 0
    (told,) = json.loads(capsys.readouterr().out)
    return folder, told["parity"]


def text(batch: int = 2, time: int = 9) -> torch.Tensor:
    return torch.randint(256, (batch, time), generator=torch.Generator().manual_seed(3))


KNOWN = {
    "GPT2LMHeadModel": ("gpt2", "(sf)x2", {}),
    "LlamaForCausalLM": ("llama", "(sf)x2", {"n_kv_head": 1}),
    "BertForMaskedLM": ("bert", "(sf)x2", {"pooler": False}),
    "AlbertForMaskedLM": ("albert", "{sf}x2", {"d_embed": 8, "pooler": False}),
    "MobileBertForMaskedLM": (
        "mobilebert",
        "<sff>[feed=shared]x2",
        {"d_bottleneck": 8, "d_embed": 8, "pooler": False, "trigrams": "all"},
    ),
}


@pytest.mark.parametrize("architecture", KNOWN)
def test_known_architectures_are_exported_as_themselves(
    architecture: str, tmp_path: Path, capsys: Any
) -> None:
    family, pattern, changes = KNOWN[architecture]
    model = make(family, pattern, **changes)
    folder, parity = exported(model, tmp_path, capsys)
    assert parity["architecture"] == architecture
    assert not list(folder.glob("*.py"))
    again = pf.load(folder)
    with torch.no_grad():
        assert_close(again(text()).logits, model(text()).logits)


@pytest.mark.parametrize(
    ("family", "pattern", "changes"),
    [("gpt2", "sffsf", {}), ("sru", "raf", {"mem_len": 40, "recall": 8}), ("llama", "{sf}x2", {})],
)
def test_other_patterns_bring_their_code(
    family: str, pattern: str, changes: dict[str, Any], tmp_path: Path, capsys: Any
) -> None:
    model = make(family, pattern, **changes)
    folder, parity = exported(model, tmp_path, capsys)
    assert parity["architecture"] == "ParformerForCausalLM"
    assert parity["greedy_tokens_equal"] == 50
    loaded = transformers.AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)
    assert sum(p.numel() for p in loaded.parameters()) == pf.cost(model.config).parameters
    beams = loaded.generate(text(1, 5), max_new_tokens=12, num_beams=3, do_sample=False)
    plain = loaded.generate(
        text(1, 5), max_new_tokens=12, num_beams=3, do_sample=False, use_cache=False
    )
    assert beams.tolist() == plain.tolist()
    torch.manual_seed(0)
    assert loaded.generate(text(), max_new_tokens=5, do_sample=True, top_k=20).shape == (2, 14)
    with torch.no_grad():
        assert_close(pf.load(folder)(text()).logits, model(text()).logits)
    loss = loaded(text(), labels=text()).loss
    loss.backward()
    assert_close(loss.detach(), model(text()[:, :-1], targets=text()[:, 1:]).loss.detach())


def test_texts_padded_on_their_left_are_written_on_as_if_alone(tmp_path: Path, capsys: Any) -> None:
    model = make("gpt2", "sffsf")
    folder, _ = exported(model, tmp_path, capsys)
    loaded = transformers.AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)
    tokens = text(2, 8)
    mask = torch.ones_like(tokens)
    mask[1, :3] = 0
    both = loaded.generate(tokens, attention_mask=mask, max_new_tokens=10, do_sample=False)
    alone = loaded.generate(tokens[1:, 3:], max_new_tokens=10, do_sample=False)
    assert both[1, 8:].tolist() == alone[0, 5:].tolist()


def test_translators_and_classifiers(tmp_path: Path, capsys: Any) -> None:
    model = make("transformer", "sf | scf", pad=0, start=1, end=2)
    folder, parity = exported(model, tmp_path, capsys)
    assert parity["architecture"] == "ParformerForSeq2SeqLM"
    loaded = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder, trust_remote_code=True)
    source = text(1, 6).clamp(min=3)
    found = loaded.generate(source, max_new_tokens=8, min_new_tokens=8, do_sample=False)
    from parformer import translate

    wanted = translate(model, source, greedy=True, max_len=8, min_len=8, padding=source > 0)
    assert found[0, 1:9].tolist() == wanted.tokens[0, 0, :8].tolist()
    judge = make("bert", "sf", label_head="class", labels=("bad", "good"))
    judge.save(tmp_path / "judge")
    assert main(["export", str(tmp_path / "judge"), "--hub", str(tmp_path / "judging")]) == 0
    loaded = transformers.AutoModelForSequenceClassification.from_pretrained(
        tmp_path / "judging", trust_remote_code=True
    )
    assert loaded.config.id2label == {0: "bad", 1: "good"}
    with torch.no_grad():
        assert_close(loaded(text()).logits, judge(text()).label_logits)


@pytest.mark.parametrize(
    "ours",
    [
        Bytes(),
        UsedBytes(b"\n abcdefu\xbc\xc3"),
        Characters("abü \n", unknown=True),
        Words(["<eos>", "a", "b", "<unk>"]),
    ],
    ids=lambda one: one.kind,
)
def test_tokenizers_number_alike_in_the_library(ours: Any) -> None:
    library = tokenizers.Tokenizer.from_str(to_library(ours))
    for sample in ("a b\nü", "abba\n a"):
        assert library.encode(sample, add_special_tokens=False).ids == ours.encode(sample)
    if ours.kind != "word":
        assert library.decode(ours.encode("ab ü\n"), skip_special_tokens=False) == "ab ü\n"


# Pushing


class Hub(BaseHTTPRequestHandler):
    """As much of the hub as an upload of small files asks for."""

    seen: list[tuple[str, str, bytes]] = []  # noqa: RUF012

    def log_message(self, *given: Any) -> None:
        pass

    def answer(self, told: Any, status: int = 200) -> None:
        raw = json.dumps(told).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    def do_GET(self) -> None:
        right = self.headers.get("Authorization") == "Bearer secret-token"
        self.answer({"id": "me/first", "siblings": []} if right else {}, 200 if right else 401)

    do_HEAD = do_GET  # noqa: N815

    def do_POST(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        if "chunked" in self.headers.get("Transfer-Encoding", ""):
            body = b""
            while size := int(self.rfile.readline(), 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
        else:
            body = self.rfile.read(length)
        token = self.headers.get("Authorization", "")
        self.seen.append((self.path, token, body))
        if token != "Bearer secret-token":
            self.answer({"error": "who are you?"}, 401)
        elif self.path.endswith("/repos/create"):
            self.answer({"url": f"http://{self.headers['Host']}/me/first"})
        elif "/preupload/" in self.path:
            asked = json.loads(body)["files"]
            modes = [
                {"path": f["path"], "uploadMode": "regular", "shouldIgnore": False} for f in asked
            ]
            self.answer({"files": modes})
        else:
            url = f"http://{self.headers['Host']}/me/first/commit/1"
            self.answer({"commitUrl": url, "commitOid": "1", "success": True})


@pytest.fixture
def hub() -> Iterator[str]:
    Hub.seen = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_folder_is_pushed_and_the_token_stays_out(
    hub: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import huggingface_hub

    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "gpt2"}')
    api = huggingface_hub.HfApi
    monkeypatch.setattr(huggingface_hub, "HfApi", lambda: api(endpoint=hub, token="secret-token"))
    told = push(folder=folder, name="me/first")
    assert told.name == "me/first"
    commit = Hub.seen[-1][2].decode()
    assert "config.json" in commit
    assert "secret-token" not in commit
    assert all("secret-token" not in file.read_text() for file in folder.iterdir())
    monkeypatch.setattr(huggingface_hub, "HfApi", lambda: api(endpoint=hub, token="wrong"))
    with pytest.raises(FolderError, match="cannot push to 'me/first'"):
        push(folder=folder, name="me/first")


def test_what_cannot_be_pushed_or_loaded_says_so(tmp_path: Path) -> None:
    for name in ("first", "../x", "me/..", "me/x/y", ""):
        with pytest.raises(ConfigError, match="name is owner/name"):
            push(folder=tmp_path, name=name)
    with pytest.raises(FolderError, match=r"has no config\.json"):
        push(folder=tmp_path, name="me/first")
    (tmp_path / "config.json").write_text('{"model_type": "mamba"}')
    with pytest.raises(FolderError, match="of the kind 'mamba'; known: parformer, gpt2"):
        pf.load(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    with pytest.raises(FolderError, match=r"has no model\.safetensors"):
        pf.load(tmp_path)


def test_codes_leave_as_the_numbers_they_stand_for() -> None:
    few, told = coded(make("llama", "sf"), 4), list[object]()
    plain = without_codes(few, Watch(told.append))
    assert find_known(plain) is not None
    assert len(told) == 1
    assert without_codes(plain, Watch(told.append)) is plain
    tokens = torch.arange(8)[None]
    with torch.inference_mode():
        assert_close(plain(tokens).logits, few(tokens).logits, atol=2e-3, rtol=2e-3)
