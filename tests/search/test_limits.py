"""Are limits read as they are written, and told back so that they let something in?"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parformer.errors import ConfigError
from parformer.search.limits import (
    METRICS,
    WRITTEN,
    as_option,
    excess,
    in_words,
    read_limit,
    read_limits,
)


@pytest.mark.parametrize(
    ("text", "most"),
    [
        ("latency=20ms", 0.02),
        ("latency=1.5s", 1.5),
        ("latency=300us", 3e-4),
        ("latency = 300 µs", 3e-4),
        ("memory=64MB", 64e6),
        ("memory=64MiB", 64 * 2**20),
        ("memory=2GB", 2e9),
        ("state=10kB", 1e4),
        ("state=10KB", 1e4),
        ("flops=5G", 5e9),
        ("flops=1e9", 1e9),
        ("parameters=50M", 5e7),
        ("parameters=1234", 1234),
    ],
)
def test_amounts_have_units(text: str, most: float) -> None:
    limit = read_limit(text)
    assert limit.most == pytest.approx(most)
    assert not limit.relative
    assert limit.of(7.0) is limit


@pytest.mark.parametrize(
    "text",
    ["latency=20", "latency=20MB", "memory=5", "memory=5ms", "flops=5GB", "latency=-1ms",
     "latency=0ms", "latency=", "latency=ms", "latency=1e999ms x", "parameters=0x"],
)  # fmt: skip
def test_an_amount_that_cannot_be_read_is_refused_with_an_example(text: str) -> None:
    metric = text.partition("=")[0]
    with pytest.raises(ConfigError, match=f"such as {metric}={WRITTEN[metric].example}"):
        read_limit(text)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("latency=5", "'latency=5' has no unit; latency is a time, in s, ms, us"),
        ("latency=5parsec", "has the unknown unit 'parsec'; latency is a time, in s, ms"),
        ("latency=5MB", "has 'MB', which is for bytes; latency is a time, in s, ms"),
        ("memory=5ms", "has 'ms', which is for a time; memory is bytes, in B, kB"),
        ("flops=5GB", "has 'GB', which is for bytes; flops is a count, in k, M"),
        ("latency=0ms", "must be an amount above 0"),
    ],
)
def test_each_wrong_unit_has_its_own_message(text: str, why: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_limit(text)
    assert why in str(caught.value)


def test_one_limit_need_not_stand_in_a_list() -> None:
    assert read_limits("latency=5ms") == read_limits(["latency=5ms"])


def test_what_is_no_limit_is_refused() -> None:
    with pytest.raises(ConfigError, match="write it as latency=20ms"):
        read_limit("20ms")
    with pytest.raises(ConfigError, match="unknown metric of a limit 'latencies'; did you mean"):
        read_limit("latencies=20ms")
    with pytest.raises(ConfigError, match="two limits of memory"):
        read_limits(["memory=1MB", "latency=1s", "memory=2MB"])


def test_multiples() -> None:
    limit = read_limit("latency=0.7x")
    assert limit.relative
    assert limit.of(2.0).most == pytest.approx(1.4)
    assert not limit.of(2.0).relative


def test_excess_adds_up_what_is_too_much() -> None:
    limits = {"latency": 2.0, "memory": 10.0}
    assert excess({"latency": 2.0, "memory": 10.0}, limits) == 0
    assert excess({"latency": 3.0, "memory": 5.0}, limits) == pytest.approx(0.5)
    assert excess({"latency": 3.0, "memory": 15.0, "flops": 9e9}, limits) == pytest.approx(1.0)
    assert excess({}, {}) == 0


@given(st.sampled_from(METRICS), st.floats(1e-5, 1e13))
def test_an_amount_told_as_an_option_lets_itself_in(metric: str, amount: float) -> None:
    amount = amount if metric == "latency" else float(round(amount) + 1)
    most = read_limit(as_option(metric, amount)).most
    assert amount <= most <= 1.02 * amount


@given(st.sampled_from(METRICS), st.floats(1e-6, 1e15))
def test_amounts_for_people_have_three_digits(metric: str, amount: float) -> None:
    assert float(in_words(metric, amount).split()[0]) >= 0


@given(st.text(max_size=30))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        read_limit(text)
    except ConfigError as error:
        assert "\n" not in str(error)
