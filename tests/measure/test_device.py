from __future__ import annotations

import json
import os
import platform
import socket
import sys
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
import torch

import parformer
from parformer.errors import ConfigError
from parformer.measure import device
from parformer.measure.device import Device, Receipt, describe_device, pinned_threads

XEON = """\
processor\t: 0
model name\t: Intel(R) Xeon(R) Gold 6430  CPU @ 2.10GHz
flags\t\t: fpu sse2 avx512f avx512_bf16
"""
GRAVITON = """\
processor\t: 0
CPU implementer\t: 0x41
Features\t: fp asimd sve bf16
"""


@pytest.fixture
def cpuinfo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(device, "CPUINFO", tmp_path / "cpuinfo")
    return tmp_path / "cpuinfo"


def test_the_cpu_is_named_and_its_bfloat16_found(cpuinfo: Path) -> None:
    cpuinfo.write_text(XEON)
    assert describe_device().cpu == "Intel Xeon Gold 6430 CPU @ 2.10GHz"
    assert describe_device().native_bf16 is True
    cpuinfo.write_text(XEON.replace("avx512_bf16", ""))
    assert describe_device().native_bf16 is False


def test_an_arm_cpu_has_no_model_name_but_features(
    cpuinfo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platform, "processor", lambda: "")
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    cpuinfo.write_text(GRAVITON)
    assert describe_device().cpu == "aarch64"
    assert describe_device().native_bf16 is True


def test_other_systems_say_what_they_know(cpuinfo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not cpuinfo.exists()
    monkeypatch.setattr(platform, "processor", lambda: "Intel64 Family 6")
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.delattr(os, "sysconf", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 12)
    found = describe_device()
    assert (found.cpu, found.cores) == ("Intel64 Family 6", 12)
    assert (found.ram_bytes, found.native_bf16) == (None, None)


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs core affinity")
def test_only_cores_this_process_may_use_are_counted() -> None:
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    try:
        assert describe_device().cores == 1
    finally:
        os.sched_setaffinity(0, allowed)


def test_versions_and_threads_are_those_in_use() -> None:
    found = describe_device()
    assert found.torch == torch.__version__
    assert found.python == platform.python_version()
    assert found.threads == torch.get_num_threads()
    assert describe_device(threads=7).threads == 7


def test_a_receipt_names_no_host_and_no_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "node", lambda: "secret-host")
    monkeypatch.setattr(socket, "gethostname", lambda: "secret-host")
    receipt = Receipt.issue("a test")
    text = json.dumps(receipt.to_dict()) + receipt.line()
    assert "secret-host" not in text
    for path in (Path.home(), Path.cwd(), sys.prefix, torch.__file__):
        assert str(path) not in text


def test_a_receipt_is_one_line_for_people_and_json_for_machines() -> None:
    evening = datetime(2026, 11, 15, 22, 30, 5, tzinfo=timezone(timedelta(hours=-5)))
    receipt = Receipt.issue("a test", threads=2, when=evening)
    assert receipt.date == "2026-11-16T03:30:05Z"
    assert (receipt.what, receipt.parformer) == ("a test", parformer.__version__)
    assert json.loads(json.dumps(receipt.to_dict())) == receipt.to_dict()


def test_the_line_is_short() -> None:
    facts = Device(
        cpu="Intel Xeon",
        cores=8,
        ram_bytes=None,
        simd="AVX2",
        mkldnn=True,
        native_bf16=None,
        accelerator=None,
        os="Linux",
        python="3.12.1",
        torch="2.13.0+cpu",
        threads=2,
    )
    receipt = Receipt(
        what="x",
        device=facts,
        date="2026-11-15T09:30:00Z",
        parformer="0.1.0",
        torch=facts.torch,
        threads=2,
    )
    assert receipt.line() == "Intel Xeon, 2 threads, torch 2.13.0, parformer 0.1.0, 2026-11-15"


def test_a_busy_machine_is_told_of() -> None:
    quiet = Receipt.issue("a test", others=0.04)
    assert (quiet.others, quiet.busy) == (0.04, False)
    busy = Receipt.issue("a test", others=0.4567)
    assert busy.busy
    assert busy.line().endswith(", on a busy machine: others took 46% of it")
    assert Receipt(**{**quiet.to_dict(), "device": quiet.device}) == quiet  # type: ignore[arg-type]


def test_threads_are_pinned_inside_and_restored_after() -> None:
    before = torch.get_num_threads()
    with pinned_threads(before + 1) as inside:
        assert inside == torch.get_num_threads() == before + 1
    assert torch.get_num_threads() == before
    with pytest.raises(KeyError), pinned_threads(before + 1):
        raise KeyError
    assert torch.get_num_threads() == before
    with pinned_threads(None) as inside:
        assert inside == before
    with pytest.raises(ConfigError, match=r"at most \d+ on \d+ cores"), pinned_threads(100_000):
        pass
    with pytest.raises(ConfigError, match="at least 1, got 0"), pinned_threads(0):
        pass
