"""Which part of a text is for training, and which is kept back?

About 5% for validation and 5% for the test: the last lines of a single text, or whole files
chosen by the hashes of their names. Nothing here depends on dates or on the file system.

>>> share({"large": 900, "small": 49, "other": 51})
{'train': ['large'], 'valid': ['other'], 'test': ['small']}
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence

SPLITS = ("train", "valid", "test")

_WORD = re.compile(
    r"(?:^|[._-])(?:(train(?:ing)?)|(valid(?:ation)?|val|dev)|(test))(?![a-z])", re.IGNORECASE
)


def split_word(name: str) -> str | None:
    """The split that a file's name speaks of.

    >>> split_word("wiki.valid.tokens"), split_word("dev-1.txt"), split_word("testament.txt")
    ('valid', 'valid', None)
    """
    found = _WORD.search(name)
    return None if found is None else SPLITS[(found.lastindex or 1) - 1]


def share(sizes: Mapping[str, int], families: Iterable[Sequence[str]] = ()) -> dict[str, list[str]]:
    """Whole files for every split, given the bytes of each.

    In the order of their names' hashes the files fill the 5% of the test, then those of
    validation; what no longer fits is passed over. Where none fits, the smallest is taken, and
    each split that follows is left one file at least. A family of files stays together, like
    one file under its first name, unless that leaves too few for three splits.

    >>> share({"a": 900, "b": 49, "c": 51, "d": 1, "e": 1}, [["d", "a"], ["c", "e"]])
    {'train': ['a', 'd'], 'valid': ['c', 'e'], 'test': ['b']}
    """
    members = {name: [name] for name in sizes}
    for family in families:
        first, *others = sorted(family)
        for name in others:
            members[first] += members.pop(name)
    if len(members) < len(SPLITS):
        members = {name: [name] for name in sizes}
    shares = _share({first: sum(sizes[n] for n in names) for first, names in members.items()})
    return {
        split: sorted(name for first in firsts for name in members[first])
        for split, firsts in shares.items()
    }


def _share(sizes: Mapping[str, int]) -> dict[str, list[str]]:
    shares: dict[str, list[str]] = {split: [] for split in SPLITS}
    left = sorted(sizes, key=_hash)
    for split, following in (("test", 2), ("valid", 1)):
        room = sum(sizes.values()) // 20
        for name in left:
            if sizes[name] <= room and len(left) - len(shares[split]) > following:
                shares[split].append(name)
                room -= sizes[name]
        if not shares[split] and left:
            shares[split].append(min(left, key=sizes.__getitem__))
        taken = set(shares[split])
        left = [name for name in left if name not in taken]
    shares["train"] = left
    return shares


def _hash(name: str) -> bytes:
    return hashlib.sha256(name.encode("utf-8", "surrogateescape")).digest()


def cut_points(size: int, read: Callable[[int, int], bytes]) -> tuple[int, int]:
    """Where validation and test begin in a text of which any range can be read.

    >>> text = b"".join(b"line %03d\\n" % i for i in range(100))
    >>> cut_points(len(text), lambda start, stop: text[start:stop])
    (810, 855)
    """
    if size < len(SPLITS):
        return size, size
    part = max(size // 20, 1)
    test = _cut(size - part, size, read)
    return _cut(min(size - 2 * part, test - 1), size, read), test


def _cut(target: int, size: int, read: Callable[[int, int], bytes]) -> int:
    """The last start of a line not after the target, or of a character where lines are long."""
    low = max(target - min(max(size // 20, 256), 2**20), 1)
    if target < low:
        return max(target, 0)
    window = read(low - 1, target + 1)
    found = window.rfind(b"\n", 0, target - low + 1)
    if found >= 0:
        return low + found
    # 10xxxxxx goes on with a character that began before.
    while target >= low and window[target - low + 1] & 0xC0 == 0x80:
        target -= 1
    return target
