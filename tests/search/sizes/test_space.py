"""Is every genome a model of its space, and is every model of the space a genome?"""

from __future__ import annotations

import csv
import json
from collections import defaultdict
from functools import cache
from itertools import product
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from parformer.costs import cost
from parformer.errors import ConfigError, ParformerError
from parformer.model import Model, build, count_parameters
from parformer.pattern import Pattern
from parformer.search.placement.choices import Choices
from parformer.search.sizes.files import space_names
from parformer.search.sizes.space import Genome, SearchSpace, read_space
from tests.search.sizes.written import blocks_of, is_of

NAMES = space_names()


def tiny(**changes: Any) -> SearchSpace:
    """A space that is small enough to be written out."""
    table = {"like": "pocket", "layers": "1..2", "unit": ["s[heads=2|4]", "f[inner=64|128]"]}
    return read_space({"name": "tiny", "fields": {"d_model": "64|128"}} | table | changes)


ADAPTIVE = {"embedding": "adaptive", "cutoffs": [50, 100]}
TINY = {
    "plain": tiny(),
    "alike": tiny(alike=True, layers="1|3"),
    "ratio": tiny(inner_ratio=1.5, unit=["s", "f[inner=64..256/64]"]),
    "ratio alike": tiny(inner_ratio=2.0, unit=["f[inner=64..256/32]"], alike=True, layers="1..4"),
    "choices": tiny(unit=["s[heads=2|4] | f[inner=64..192/64] | i"], layers=2),
    "same letter": tiny(unit=["s[heads=2] | s[heads=4|8] | s | f"], layers=2),
    "identities": tiny(unit=["s | i", "f | i"], layers="1..3", fields={}),
    "fields": tiny(
        layers=1,
        model=ADAPTIVE,
        fields={"d_model": "64|96", "d_embed": "0|32", "div_val": "1..3"},
    ),
    "options": tiny(like="srupp-pocket", unit=["a[heads=1|2,width=32|64] | r[full]"], layers=2),
    "bottlenecks": tiny(
        unit=["<sf>[feed=shared,width=32|64|128] | <sf>[width=16] | <sff>[width=64..128/32] | i"],
        layers=1,
    ),
    "words": tiny(like="srupp-pocket", unit=["r[norm=post|off,width=8] | i"], fields={}),
    "memories": tiny(unit=["n[rows=16|64|256,to=3]", "f[inner=64|128]"]),
    "synthesizers": tiny(
        unit=["y[heads=2|4,random+vanilla] | y[dense] | y[factored-random,rank=4|8] | i"], layers=2
    ),
    "one": tiny(unit=["s"], layers=1, fields={}),
    "translators": tiny(
        like="transformer-pocket-translation",
        unit=["s | i", "c[heads=2|4]"],
        encoder=["s[heads=2|4] | i"],
        encoder_layers="1..2",
        fields={},
    ),
    "translators alike": tiny(
        like="srupp-pocket-translation",
        unit=["a[source,width=8|16]"],
        encoder=["a[both] | r[both]"],
        encoder_layers="2..3",
        alike=True,
        fields={"d_model": "64|96"},
    ),
}
EVERY = {**{name: read_space(name) for name in NAMES}, **TINY}


@cache
def written_out(name: str) -> dict[str, Genome]:
    """Every genome of a tiny space, by its text."""
    space, found = TINY[name], {}
    table = space.to_dict()
    for values in product(*(r.values for _, r in space.fields)):
        fields = {field: value for (field, _), value in zip(space.fields, values, strict=True)}
        sides = [stacks_of(space, table["unit"], space.layers.values, fields["d_model"])]
        if "encoder" in table:
            depths = space.encoder_layers.values
            sides.append(stacks_of(space, table["encoder"], depths, fields["d_model"]))
        for both in product(*sides):
            genome = Genome(fields, *both)
            found[genome.text] = genome
    return found


def stacks_of(space: SearchSpace, unit: list[str], depths: Any, width: int) -> list[Any]:
    """Every stack of one side."""
    layers = [*product(*(blocks_of(slot, width, space.inner_ratio) for slot in unit))]
    found: list[Any] = []
    for depth in depths:
        same = [(layer,) * depth for layer in layers]
        found += same if space.alike else product(layers, repeat=depth)
    return [tuple(stack) for stack in found]


@pytest.mark.parametrize("name", TINY)
def test_the_size_is_the_number_of_genomes_written_out(name: str) -> None:
    assert TINY[name].size == len(written_out(name))


def test_sizes_of_tiny_spaces_are_what_one_counts_on_paper() -> None:
    sizes = {name: space.size for name, space in TINY.items()}
    assert sizes["plain"] == 2 * (4 + 4**2)
    assert sizes["alike"] == 2 * (2 * 4)
    assert sizes["ratio"] == (3 + 3**2) + (2 + 2**2)
    assert sizes["choices"] == 2 * 6**2
    assert sizes["same letter"] == 2 * 5**2
    assert sizes["identities"] == 4 + 4**2 + 4**3
    assert sizes["fields"] == 2 * 2 * 3 * 4
    assert sizes["options"] == 2 * 5**2
    assert sizes["one"] == 1
    assert sizes["translators"] == (4 + 4**2) * (3 + 3**2)
    assert sizes["translators alike"] == 2 * (2 * 2) * (2 * 2)


@pytest.mark.parametrize("name", TINY)
def test_draws_reach_every_genome_and_no_other(name: str) -> None:
    space, rng, every = TINY[name], Random(1), written_out(name)
    drawn = {space.draw(rng).text for _ in range(20 * len(every))}
    assert drawn <= every.keys()
    assert len(drawn) > 0.9 * len(every)
    assert all(is_of(space, genome) for genome in every.values())


@pytest.mark.parametrize("name", TINY)
def test_children_stay_in_a_tiny_space(name: str) -> None:
    space, rng, every = TINY[name], Random(2), written_out(name)
    parents = [*every.values()]
    for _ in range(300):
        one, other = rng.choices(parents, k=2)
        assert space.mutate(one, rng, rng.choice([0.1, 0.5, 1.0])).text in every
        assert space.cross(one, other, rng).text in every
    assert space.smallest().text in every


@pytest.mark.parametrize("name", EVERY)
def test_whatever_is_drawn_mutated_or_crossed_is_in_the_space(name: str) -> None:
    space, rng = EVERY[name], Random(3)
    parents = [space.smallest(), space.draw(rng)]
    for _ in range(40):
        one, other = rng.choices(parents[-6:], k=2)
        made = [space.draw(rng), space.mutate(one, rng, 0.3), space.cross(one, other, rng)]
        for genome in made:
            assert is_of(space, genome), genome
            width = genome.fields["d_model"]
            inner = [
                int(text.removeprefix("f[inner=").removesuffix("]"))
                for layer in genome.layers
                for text in layer
                if text.startswith("f[inner=")
            ]
            assert all(value >= space.inner_ratio * width for value in inner)
            assert len(set(genome.layers)) == 1 or not space.alike
            assert Genome.read(genome.text) == genome
            assert Genome.read(genome.text).digest == genome.digest
        parents += made


@pytest.mark.parametrize("name", EVERY)
def test_the_same_generator_makes_the_same(name: str) -> None:
    space = EVERY[name]

    def trial(seed: int) -> list[str]:
        rng = Random(seed)
        one, other = space.draw(rng), space.draw(rng)
        return [one.text, space.mutate(one, rng, 0.5).text, space.cross(one, other, rng).text]

    assert trial(5) == trial(5)
    if space.size > 10**5:
        assert trial(5) != trial(6)


@pytest.mark.parametrize("name", TINY)
def test_equal_digests_are_equal_models(name: str) -> None:
    space = TINY[name]
    models, digests = defaultdict(set), defaultdict(set)
    for genome in written_out(name).values():
        words = [
            "".join(t for layer in layers for t in layer if t != "i")
            for layers in (genome.layers, genome.encoder)
        ]
        key = (json.dumps(genome.fields, sort_keys=True), "|".join(words))
        models[key].add(genome.digest)
        digests[genome.digest].add(space.config(genome))
    assert all(len(found) == 1 for found in models.values())
    assert all(len(found) == 1 for found in digests.values())
    assert len(digests) == len(models)


def test_identities_make_one_model_of_several_genomes() -> None:
    digests = {genome.digest for genome in written_out("identities").values()}
    words = {"".join(w).replace(" ", "") for w in product(["s", " "], ["f", " "], repeat=3)}
    assert len(digests) == len(words) < len(written_out("identities"))
    assert Genome({"d_model": 64}, (("i",), ("i",))).digest == Genome({"d_model": 64}, ()).digest


@pytest.mark.parametrize("name", EVERY)
def test_a_space_is_what_its_table_says(name: str) -> None:
    space = EVERY[name]
    table = json.loads(json.dumps(space.to_dict()))
    again = read_space(table)
    assert again == space
    assert again.to_dict() == space.to_dict()
    assert again.draw(Random(1)) == space.draw(Random(1))


@pytest.mark.parametrize("name", EVERY)
def test_every_genome_prices_and_builds_as_the_same_model(name: str) -> None:
    """Outlines have shapes, and take no memory."""
    space, rng = EVERY[name], Random(4)
    for genome in [space.smallest(), *(space.draw(rng) for _ in range(3))]:
        config = space.config(genome)
        assert config.d_model == genome.fields["d_model"]
        sides = [
            "".join(text for layer in layers for text in layer if text != "i") or "i"
            for layers in (genome.encoder, genome.layers)
        ]
        wanted = " | ".join(sides) if space.encoder else sides[1]
        assert config.pattern == Pattern.parse(wanted)
        assert config == space.like.replaced(pattern=config.pattern, **genome.fields)
        with torch.device("meta"):
            model = Model(config)
        assert count_parameters(model) == cost(config).parameters


# those with recurrences would compile a kernel first, which has tests of its own
@pytest.mark.parametrize(
    "name", ["pocket", "pocket-mixed", "plain", "choices", "fields", "identities", "synthesizers"]
)
def test_small_genomes_run(name: str) -> None:
    space, rng = EVERY[name], Random(6)
    for genome in [space.smallest(), space.draw(rng)]:
        model = build(space.config(genome))
        with torch.no_grad():
            logits = model(torch.tensor([[1, 2, 3]])).logits
        assert logits.shape == (1, 3, space.like.vocab_size)
        assert logits.isfinite().all()


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"unit": ["s", "f"]}, "no place of the unit always looks at the encoder; give it c"),
        ({"unit": ["c | i"]}, "no place of the unit always looks at the encoder"),
        ({"encoder": ["c"]}, "c in the encoder of 'c | c' has nothing to look at"),
        ({"encoder": []}, "needs both encoder and encoder_layers, or neither"),
        ({"encoder": "s"}, "encoder of space 'tiny' must be a list"),
        ({"encoder_layers": "0..2"}, "layers must lie between 1 and 128, got 0..2"),
    ],
)
def test_spaces_of_translators_that_make_no_sense(changes: dict[str, Any], problem: str) -> None:
    table = {"like": "transformer-pocket-translation", "unit": ["c"], "encoder": ["s"]}
    with pytest.raises(ConfigError, match=problem.replace("|", r"\|")):
        tiny(**{**table, "encoder_layers": 1, "fields": {}, **changes})


def test_a_translator_needs_a_space_with_an_encoder() -> None:
    with pytest.raises(ConfigError, match="has an encoder and the space none; add encoder = "):
        read_space("pocket", "transformer-pocket-translation")


def test_the_pocket_space_shares_its_biases_among_different_heads() -> None:
    space = EVERY["pocket"]
    assert (space.like.positions, space.like.position_bias) == ("relative", "shared")
    layers = (("s[heads=2]", "f[inner=96]"), ("s[heads=8]", "f[inner=128]"))
    assert not is_of(space, Genome({"d_model": 96}, layers))
    genome = Genome({"d_model": 96}, (("s[heads=2]", "f[inner=128]"), *layers[1:]))
    assert is_of(space, genome)
    assert build(space.config(genome))(torch.tensor([[1]])).logits.isfinite().all()


with (Path(__file__).parents[2] / "oracles" / "lts_tables.csv").open() as file:
    LTS = list(csv.DictReader(file))


@pytest.mark.parametrize("family", ["transformer-xl", "gpt2"])
def test_the_published_models_are_in_the_space_that_was_searched(family: str) -> None:
    space = read_space("lts-as-run", f"lts-{family}")
    rows = [row for row in LTS if row["table"] != "3" and row["family"] == family]
    assert len(rows) == {"transformer-xl": 108, "gpt2": 112}[family]
    for row in rows:
        genome = genome_of(row)
        assert is_of(space, genome), row
        price = cost(space.config(genome))
        assert space.within_bounds(price), row
        assert as_printed(price.decoder_parameters, row)


def test_the_models_beside_opt_are_in_their_space() -> None:
    space = read_space("opt-350m")
    strangers = []
    for row in (row for row in LTS if row["table"] == "3"):
        genome = genome_of(row)
        price = cost(space.config(genome), tgt_len=2048)
        assert space.within_bounds(price), row
        assert as_printed(price.decoder_parameters + 2048 * genome.fields["d_model"], row)
        if not is_of(space, genome):
            strangers.append((row["name"], row["d_model"]))
    # the table has one width that is not a multiple of 64, against its own text
    assert strangers == [("M17", "1480")]


def genome_of(row: dict[str, str]) -> Genome:
    sizes = zip(row["heads"].split(), row["inner"].split(), strict=True)
    layers = tuple((f"s[heads={heads}]", f"f[inner={inner}]") for heads, inner in sizes)
    return Genome({"d_model": int(row["d_model"])}, layers)


def as_printed(parameters: int, row: dict[str, str]) -> bool:
    digits = len(row["printed_millions"].partition(".")[2])
    return abs(parameters / 1e6 - float(row["printed_millions"])) <= 0.5 * 10**-digits


def test_some_published_models_break_the_rule_of_the_text() -> None:
    """That inner widths are at least twice the width is not what was run."""
    widths = [(int(row["d_model"]), min(map(int, row["inner"].split()))) for row in LTS[21:]]
    assert any(inner < 2 * width for width, inner in widths)
    assert all(inner >= 1.7 * width for width, inner in widths)
    assert max(width for width, _ in widths) == 960


@pytest.mark.parametrize("name", NAMES)
def test_nothing_drawn_is_smaller_than_the_smallest(name: str) -> None:
    space, rng = EVERY[name], Random(8)
    least = cost(space.config(space.smallest()))
    for _ in range(30):
        price = cost(space.config(space.draw(rng)))
        assert least.parameters <= price.parameters
        assert least.flops <= price.flops
        assert least.state_bytes <= price.state_bytes


def test_the_smallest_takes_the_smallest_block() -> None:
    wide = tiny(unit=["f[inner=512|1024] | s"])
    assert wide.smallest() == Genome({"d_model": 64}, (("s",),))
    narrow = tiny(unit=["s | f[inner=64]"])
    assert narrow.smallest() == Genome({"d_model": 64}, (("f[inner=64]",),))
    assert TINY["fields"].smallest().fields == {"d_embed": 0, "d_model": 64, "div_val": 3}


def test_bounds_hold_at_both_ends() -> None:
    price = cost(TINY["one"].config(TINY["one"].smallest()))
    count = price.decoder_parameters
    for text, inside in [
        (f"{count}", True),
        (f"{count - 1}..{count}", True),
        (f"{count}..{count + 1}", True),
        (f"{count + 1}..{count + 9}", False),
        (f"{count - 9}..{count - 1}", False),
        (f"1..{count - 1}", False),
    ]:
        assert tiny(bounds={"decoder_parameters": text}).within_bounds(price) is inside
    both = tiny(bounds={"decoder_parameters": f"{count}", "parameters": "1..2"})
    assert not both.within_bounds(price)


def test_a_chance_of_one_draws_everything_again_and_of_none_nothing() -> None:
    space, rng = EVERY["lts"], Random(0)
    genome = space.draw(rng)
    assert all(space.mutate(genome, rng, 0.0) == genome for _ in range(20))
    drawn = [space.mutate(genome, rng, 1.0) for _ in range(200)]
    assert {len(one.layers) for one in drawn} == {*range(2, 17)}
    same = sum(one.layers[0] == genome.layers[0] for one in drawn)
    assert same < 15


def test_mutation_changes_genes_as_often_as_it_says() -> None:
    """A gene that is drawn again may come out as it was."""
    space, rng, chance, trials = EVERY["pocket"], Random(0), 0.3, 1500
    layer = ("s[heads=4]", "f[inner=512]")
    genome = Genome({"d_model": 256}, (layer,) * 5)
    changed = defaultdict(int)
    for _ in range(trials):
        one = space.mutate(genome, rng, chance)
        changed["d_model"] += one.fields["d_model"] != 256
        changed["depth"] += len(one.layers) != 5
        changed["heads"] += one.layers[0][0] != layer[0]
        changed["inner"] += one.layers[0][1] != layer[1]
    for name, choices in {"d_model": 7, "depth": 10, "heads": 3, "inner": 13}.items():
        expected = chance * (1 - 1 / choices)
        assert changed[name] / trials == pytest.approx(expected, abs=0.035)


def test_a_new_width_only_draws_again_what_it_rules_out() -> None:
    space = tiny(inner_ratio=2.0, unit=["f[inner=128..512/64]"] * 2, layers=3)
    one = Genome({"d_model": 64}, (("f[inner=128]", "f[inner=512]"),) * 3)
    other = Genome({"d_model": 128}, (("f[inner=256]", "f[inner=512]"),) * 3)
    widths = set()
    for seed in range(60):
        child = space.cross(one, other, Random(seed))
        widths.add(child.fields["d_model"])
        assert {layer[1] for layer in child.layers} == {"f[inner=512]"}
        firsts = {layer[0] for layer in child.layers}
        if child.fields["d_model"] == 64:
            assert firsts <= {"f[inner=128]", "f[inner=256]"}
        else:
            assert firsts <= {f"f[inner={inner}]" for inner in range(256, 513, 64)}
    assert widths == {64, 128}


def test_a_cross_takes_every_gene_from_a_parent() -> None:
    space = EVERY["lts"]
    one = Genome({"d_embed": 128, "d_model": 256, "div_val": 1},
                 (("s[heads=2]", "f[inner=1024]"),) * 3)  # fmt: skip
    other = Genome({"d_embed": 512, "d_model": 512, "div_val": 4},
                   (("s[heads=8]", "f[inner=2048]"),) * 8)  # fmt: skip
    seen = defaultdict(set)
    for seed in range(100):
        child = space.cross(one, other, Random(seed))
        for name, value in child.fields.items():
            seen[name].add(value)
        seen["depth"].add(len(child.layers))
        for number, layer in enumerate(child.layers):
            seen["early" if number < 3 else "late"].add(layer)
    assert seen["d_embed"] == {128, 512}
    assert seen["d_model"] == {256, 512}
    assert seen["div_val"] == {1, 4}
    assert seen["depth"] == {3, 8}
    assert seen["early"] == {*product(("s[heads=2]", "s[heads=8]"),
                                      ("f[inner=1024]", "f[inner=2048]"))}  # fmt: skip
    assert seen["late"] == {("s[heads=8]", "f[inner=2048]")}


def test_alternatives_of_the_same_letter_are_kept() -> None:
    """A block whose options no other alternative has is not drawn again for nothing."""
    space = TINY["same letter"]
    genome = Genome({"d_model": 64}, (("s[heads=8]",), ("s",)))
    assert all(space.cross(genome, genome, Random(seed)) == genome for seed in range(20))
    assert all(space.mutate(genome, Random(seed), 1e-9) == genome for seed in range(20))


def test_a_differentiable_searchs_space_is_a_space_of_genomes() -> None:
    layers = Choices.uniform(3, "s[heads=2] s[heads=4] f i")
    slot = "s[heads=2] | s[heads=4] | f | i"
    space = tiny(layers=1, unit=[slot] * 3, fields={})
    assert space.size == layers.size == 64
    assert space.mixes
    assert read_space(space.to_dict()) == space
    patterns = {str(layers.pattern(picks)) for picks in product(range(4), repeat=3)}
    rng = Random(0)
    drawn = [space.draw(rng) for _ in range(600)]
    assert {str(space.config(genome).pattern) for genome in drawn} == patterns
    assert len({genome.digest for genome in drawn}) == len(patterns)
    for one, other in zip(drawn[:50], drawn[50:100], strict=True):
        for child in (space.mutate(one, rng, 0.3), space.cross(one, other, rng)):
            assert is_of(space, child), child
    ones = tiny(layers=1, unit=["s[heads=1] | f"] * 2, fields={})
    assert read_space(ones.to_dict()) == ones


@pytest.mark.parametrize(
    "text",
    [
        "",
        "3",
        "null",
        "[]",
        "{}",
        '{"layers": 3}',
        '{"layers": [3]}',
        '{"layers": [[3]]}',
        '{"layers": [null]}',
        '{"layers": [], "d_model": 64.5}',
        '{"layers": [], "d_model": "64"}',
        '{"layers": [], "d_model": true}',
        '{"layers": [], "d_model": Infinity}',
        '{"layers": [], "d_model": NaN}',
        '{"layers": [], "d_model": [64]}',
        '{"layers": [["s"]], "d_model": ' + "9" * 5000 + "}",
        "[" * 100_000,
        "{" * 100,
    ],
    ids=range(18),
)
def test_what_is_no_genome_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="is no genome"):
        Genome.read(text)


@given(st.text(max_size=30))
@settings(max_examples=30)
def test_any_text_is_a_genome_or_refused(text: str) -> None:
    for form in (text, f'{{"d_model": 64, "layers": [["{text}"]]}}'):
        try:
            genome = Genome.read(form)
            assert Genome.read(genome.text) == genome
            TINY["plain"].config(genome)
        except ParformerError:
            pass


def test_the_text_of_a_genome_is_canonical() -> None:
    genome = Genome({"div_val": 2, "d_model": 64}, (("s[heads=2]", "i"),))
    assert genome.text == '{"d_model":64,"div_val":2,"layers":[["s[heads=2]","i"]]}'
    assert Genome({"d_model": 64, "div_val": 2}, genome.layers).digest == genome.digest
    assert len(genome.digest) == 16
    assert genome.digest != Genome({"d_model": 64, "div_val": 1}, genome.layers).digest
