"""Does a text stop copying itself, and only that?"""

from __future__ import annotations

from random import Random

import pytest
import torch

import parformer as pf
from parformer.cli import main
from parformer.errors import ConfigError
from parformer.generate import Sampling, generate
from parformer.generate.copies import LONGEST, PENALTY, lengths, shun_copies


def plainly(text: list[int], least: int) -> dict[int, int]:
    """For every earlier place, how much of what stands before it stands at the end as well."""
    found: dict[int, int] = {}
    for place in range(1, len(text)):
        before, length = text[:place], 0
        while length < place and before[-length - 1 :] == text[-length - 1 :]:
            length += 1
        if length >= least:
            found[text[place]] = max(length, found.get(text[place], 0))
    return found


@pytest.mark.parametrize("seed", range(20))
def test_copies_are_as_long_as_whoever_compares_everything_finds(seed: int) -> None:
    rng = Random(seed)
    text = [rng.randrange(3) for _ in range(rng.randint(1, 60))]
    for least in (1, 2, 5):
        assert lengths(text, least) == plainly(text, least)


def test_the_longer_a_copy_the_less_likely_it_goes_on() -> None:
    texts = [[1, 2, 3, 1, 2], [1, 2, 3, 4, 5]]
    logits = torch.zeros(2, 6)
    shun_copies(logits, texts, 2)
    assert logits[0].tolist() == pytest.approx([0, 0, 0, -PENALTY, 0, 0])
    assert not bool(logits[1].any())
    shun_copies(logits, [[7] * 500, texts[1]], 2)  # a token that this model never writes
    assert not bool(logits[1].any())
    shun_copies(logits, [[4] * 500, texts[1]], 2)
    assert float(logits[0, 4]) == pytest.approx(-PENALTY * (LONGEST - 1))


@pytest.fixture(scope="module")
def model() -> pf.Model:
    config = pf.preset("pocket", pattern="sf", d_model=16, n_head=2, d_inner=32, recall=64)
    return pf.build(config, seed=3)


def test_what_goes_round_and_round_finds_a_way_out(model: pf.Model) -> None:
    prompt, longest = [list(b"one two three. one two three. ")], 6

    def copied(sampling: Sampling) -> int:
        (text,) = generate(model, prompt, 120, sampling=sampling)
        whole = prompt[0] + text
        return max(
            max(lengths(whole[:end], 1).get(whole[end], 0), 0)
            for end in range(len(prompt[0]), len(whole))
        )

    assert copied(Sampling(temperature=0)) > 60
    assert copied(Sampling(temperature=0, longest_copy=longest)) < 60


def test_the_native_way_shuns_what_the_ordinary_one_does(model: pf.Model) -> None:
    prompts = [list(b"one two one two "), list(b"three four three")]
    sampling = Sampling(temperature=0.3, longest_copy=4)
    ways = [
        generate(model, prompts, 60, sampling=sampling, seed=5, use_state=state)
        for state in (True, False)
    ]
    assert ways[0] == ways[1]


def test_lengths_below_nothing_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ConfigError, match="longest_copy"):
        Sampling(longest_copy=-1)
    assert main(["generate", "any", "--longest-copy", "-1"]) == 2
    assert "longest_copy" in capsys.readouterr().err
