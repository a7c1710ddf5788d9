"""Which blocks does a space stand for, read from nothing but its texts?"""

from __future__ import annotations

from functools import cache
from itertools import product

from parformer.search.sizes.space import Genome, SearchSpace


@cache
def blocks_of(slot: str, width: int, ratio: float) -> list[str]:
    """All blocks that a slot's text stands for, for spaces of this file alone."""
    found = []
    for choice in slot.split(" | "):
        letter, _, rest = choice.rstrip("]").partition("[")
        names, lists = [], []
        for option in filter(None, rest.split(",")):
            name, _, text = option.partition("=")
            if ".." in text:
                low, _, high = text.partition("..")
                high, _, step = high.partition("/")
                values = [*map(str, range(int(low), int(high) + 1, int(step or 1)))]
            else:
                values = text.split("|")
            if name == "inner":
                values = [value for value in values if int(value) >= ratio * width]
            if name == "width" and letter.startswith("<"):
                values = [value for value in values if int(value) <= width]
            names.append(name)
            lists.append(values)
        for values in product(*lists):
            pairs = zip(names, values, strict=True)
            options = ",".join(f"{n}={v}" if v else n for n, v in pairs)
            found.append(f"{letter}[{options}]" if options else letter)
    return found


def is_of(space: SearchSpace, genome: Genome) -> bool:
    """Whether a genome is one of a space's, by the text that the space is written as."""
    fields, values, table = dict(space.fields), genome.fields, space.to_dict()
    if values.keys() != fields.keys():
        return False
    sides = [(table["unit"], space.layers, genome.layers)]
    if "encoder" in table:
        sides.append((table["encoder"], space.encoder_layers, genome.encoder))
    elif genome.encoder:
        return False
    for unit, depths, layers in sides:
        slots = [blocks_of(slot, values["d_model"], space.inner_ratio) for slot in unit]
        inside = all(
            all(text in slot for text, slot in zip(layer, slots, strict=True)) for layer in layers
        )
        if not inside or len(layers) not in depths.values:
            return False
        if space.alike and len(set(layers)) > 1:
            return False
    return all(values[name] in fields[name].values for name in fields)
