"""docs/internals/files-and-locks.md has each field of the mapped files where the code has it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
PAGE = (ROOT / "docs" / "internals" / "files-and-locks.md").read_text()
CODE = (ROOT / "src/klamm/disk/os.h").read_text() + (ROOT / "src/klamm/log/slot.h").read_text()
SIZES = {"char": 1, "uint32_t": 4, "int64_t": 8, "uint64_t": 8}

Fields = set[tuple[int, int]]
"""Where each begins, and how long it is."""


def members(name: str) -> Iterator[tuple[str, str, int]]:
    """Yield the type, the name and the count (0: no array) of each member of a struct."""
    found = re.search(rf"typedef struct(?: \w+)? \{{((?:(?!typedef).)*?)\}} {name};", CODE, re.DOTALL)
    assert found, name
    for declared in re.sub(r"/\*.*?\*/", "", found[1], flags=re.DOTALL).split(";"):
        if declared.strip():
            kind, names = declared.split(maxsplit=1)
            for each in names.split(","):
                array = re.fullmatch(r"(\w+)(?:\[(\d+)\])?", each.strip())
                assert array, declared
                yield kind, array[1], int(array[2] or 0)


def size_of(kind: str) -> int:
    return SIZES.get(kind) or sum(size_of(of) * (count or 1) for of, _, count in members(kind))


def in_the_code(name: str) -> Fields:
    fields, at = set(), 0
    for kind, member, count in members(name):
        size = size_of(kind)
        parts = [size * count] if kind == "char" else [size] * (count or 1)
        if kind == "KlammBell":
            parts = [size_of(part) for part, _, _ in members(kind)]
        for part in parts:
            if not member.startswith(("unused", "reserved")):
                fields.add((at, part))
            at += part
    return fields


def on_the_page(title: str) -> Fields:
    table = PAGE[PAGE.index(f"\n{title}") :].split("\n\n")[1]
    fields = set()
    for start, sizes in re.findall(r"^\| (\d+) \| ([\d +×]+) \|", table, re.MULTILINE):
        at = int(start)
        for size in sizes.split(" + "):
            length, _, count = size.partition(" × ")
            for _ in range(int(count or 1)):
                fields.add((at, int(length)))
                at += int(length)
    return fields


@pytest.mark.parametrize(
    ("title", "name"),
    [
        ("Slot 0:", "StoreSlot"),
        ("Slot n > 0:", "Slot"),
        ("A note beside a lock byte,", "KlammLockNote"),
        ("A commit:", "Commit"),
    ],
)
def test_the_page_has_the_fields_of_the_code(title: str, name: str) -> None:
    assert on_the_page(title) == in_the_code(name)
