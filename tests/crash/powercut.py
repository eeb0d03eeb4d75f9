"""A disk that loses power: what a directory may look like afterwards, at every step of a recorded program.

`record` runs a program under powercut.c, which writes a trace of it; `Disk` replays the trace, step by step, and at any
step `cut` makes a directory as it could be after a power cut:

  files    Only what was synced is certain. Of everything since, each sector of 512 bytes has any of the contents that
           it had, and the file any of the sizes that it had, in any combination; where a size survived and the bytes
           did not, there are zeros. Mapped files are the same, their sectors having been looked at at each step.
  names    Creating, renaming and removing are certain when the directory was synced, whatever happened to the file
           itself. Until then each may have happened or not: either in order, as in a journal, or in any order, but
           those of one name in order. A rename is there as a whole or not at all.

A trace is a run of records: kind, 3 unused bytes, length of two names and of data (uint32 each), inode, position
(uint64, int64), little-endian; then the names and the data.

    C create (name)   W write   T truncate (position: size)   S sync, of a file or a directory   R rename (two names)
    U unlink, rmdir (name)   M mkdir (name)   H a mapped sector as it is now   N a note   ! a call we do not understand
"""

from __future__ import annotations

import json
import os
import random
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from tests.procs import STRICT
from tests.shims import compiled

SECTOR = 512
LAST = -1.0
"""A value of `luck`, for `cut`: of what was not synced, only the last change of a name survives, and the changes before
it that it needs.
"""
_HEADER = struct.Struct("<B3xIIIQq")


class Step(NamedTuple):
    kind: str
    inode: int
    position: int
    names: tuple[str, ...]
    data: bytes

    @property
    def note(self) -> dict[str, Any]:
        note: dict[str, Any] = json.loads(self.data)
        return note


def shim() -> Path:
    """The compiled recorder, made once for each version of its source."""
    return compiled(Path(__file__).with_name("powercut.c"))


def recorded(root: Path, trace: Path, *, with_children: bool = False) -> dict[str, str]:
    """Return the variables of a process whose changes below `root` are recorded, or its children's as well."""
    everything = {"POWERCUT_ALL": "1"} if with_children else {}
    return {"LD_PRELOAD": str(shim()), "POWERCUT_ROOT": str(root.resolve()), "POWERCUT_TRACE": str(trace), **everything}


def record(root: Path, trace: Path, script: Path, *arguments: str) -> list[Step]:
    """Run a Python script and return what it did to the files below `root`."""
    environment = os.environ | recorded(root, trace)
    environment["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent.parent.parent), *sys.path])
    done = subprocess.run(
        [sys.executable, *STRICT, script, *arguments], env=environment, timeout=60, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return load(trace)


def load(trace: Path) -> list[Step]:
    data, at, steps = trace.read_bytes(), 0, []
    while at < len(data):
        kind, first, second, size, inode, position = _HEADER.unpack_from(data, at)
        at += _HEADER.size
        names = tuple(
            os.fsdecode(name) for name in (data[at : at + first], data[at + first : at + first + second]) if name
        )
        at += first + second
        steps.append(Step(chr(kind), inode, position, names, data[at : at + size]))
        at += size
    return steps


def moments(steps: list[Step]) -> Iterator[int]:
    """How many steps to take for each moment worth a cut: after each change, with what was noted before the next."""
    for number, step in enumerate(steps):
        if step.kind not in "NH":
            after = number + 1
            while after < len(steps) and steps[after].kind == "N":
                after += 1
            yield after


def distinct(steps: list[Step], moments: Sequence[int], luck: float | None) -> set[int]:
    """Return those of the moments, in order, at which a cut may leave what it may not leave at another.

    If nothing survives that was not synced (luck 0), that takes a sync, or a note: more is promised then. If everything
    survives (luck 1), it takes anything but a sync. If anything may survive (None), it takes a change that is the last
    one before a sync or a note: until then each change only adds to what may be left, since it may be lost, too, and a
    sync by itself only takes away from that.
    """
    moments = list(dict.fromkeys(moments))
    between = [{step.kind for step in steps[before:after]} for before, after in pairwise([0, *moments])]
    if luck is None:
        after = [*between[1:], {"S"}]
        chosen = zip(moments, between, after, strict=True)
        return {moment for moment, led, then in chosen if not led <= {"S"} and not then.isdisjoint("SN")}
    if luck not in (0, 1):
        return set(moments)
    changing = "SN" if luck == 0 else "CMURWTHN"
    later = {moment for moment, led in zip(moments[1:], between[1:], strict=True) if not led.isdisjoint(changing)}
    return {*moments[:1], *later}


@dataclass(eq=False)
class File:
    inode: int = 0
    now: bytearray = field(default_factory=bytearray)
    synced: bytes = b""
    sizes: list[int] = field(default_factory=list)  # since the last sync
    sectors: dict[int, list[bytes]] = field(default_factory=dict)  # contents since the last sync

    def write(self, position: int, data: bytes) -> None:
        old = len(self.now)
        if position > old:
            self.now.extend(bytes(position - old))
        self.now[position : position + len(data)] = data
        self._note(min(position, old), position + len(data))

    def truncate(self, size: int) -> None:
        old = len(self.now)
        del self.now[size:]
        self.now.extend(bytes(size - len(self.now)))
        self._note(min(old, size), min(max(old, size), min(old, size) + SECTOR))

    def _note(self, start: int, end: int) -> None:
        for sector in range(start // SECTOR, -(-end // SECTOR)):
            content = bytes(self.now[sector * SECTOR : (sector + 1) * SECTOR]).ljust(SECTOR, b"\0")
            self.sectors.setdefault(sector, []).append(content)
        if len(self.now) != (self.sizes[-1] if self.sizes else len(self.synced)):
            self.sizes.append(len(self.now))

    def sync(self) -> None:
        if self.sectors or self.sizes:
            self.synced = bytes(self.now)
            self.sizes.clear()
            self.sectors.clear()

    def survivor(self, dice: random.Random, luck: float | None) -> bytes:
        """`luck` 0 or LAST: only what was synced; 1: everything; None: for each unsynced sector, something."""
        if luck in (0, LAST) or not (self.sectors or self.sizes):
            return self.synced
        if luck == 1:
            return bytes(self.now)
        chance = dice.choice([0.1, 0.5, 0.9, 1.0])
        size = dice.choice([len(self.synced), *self.sizes, len(self.now), len(self.now)])
        data = bytearray(self.synced.ljust(-(-size // SECTOR) * SECTOR, b"\0"))
        latest = dice.random() < 0.5
        for sector, contents in self.sectors.items():
            if sector * SECTOR < size and dice.random() < chance:
                content = contents[-1] if latest else dice.choice(contents)
                data[sector * SECTOR : (sector + 1) * SECTOR] = content
        return bytes(data[:size])


@dataclass(eq=False)
class Directory:
    inode: int = 0
    now: dict[str, Node] = field(default_factory=dict)
    synced: dict[str, Node] = field(default_factory=dict)


Node = File | Directory
Change = list[tuple[Directory, str, Node | None]]  # what one call did to names


class Disk:
    """The files below a root, as they are and as they may survive."""

    def __init__(self) -> None:
        self.root = Directory()
        self.changes: list[Change] = []  # to names, not yet certain, in order
        self._by_inode: dict[int, Node] = {}

    @classmethod
    def of(cls, root: Path) -> Disk:
        """A disk with what is there now, all of it synced."""
        disk = cls()
        disk.root = disk._load(str(root))
        return disk

    def _load(self, path: str) -> Directory:
        directory = Directory(os.stat(path).st_ino)
        self._by_inode[directory.inode] = directory
        for entry in os.scandir(path):
            node: Node
            if entry.is_dir():
                node = self._load(entry.path)
            else:
                data = Path(entry.path).read_bytes()
                node = self._by_inode[entry.inode()] = File(entry.inode(), bytearray(data), data)
            directory.now[entry.name] = directory.synced[entry.name] = node
        return directory

    def take(self, step: Step) -> None:
        match step.kind:
            case "C" | "M":
                node: File | Directory = File(step.inode) if step.kind == "C" else Directory(step.inode)
                self._by_inode[step.inode] = node
                self._change((*self._at(step.names[0]), node))
            case "U":
                self._change((*self._at(step.names[0]), None))
            case "R":
                source, name = self._at(step.names[0])
                self._change((source, name, None), (*self._at(step.names[1]), source.now[name]))
            case "S":
                node = self._by_inode[step.inode]
                if isinstance(node, File):
                    node.sync()
                else:
                    self._sync_names(node)
            case "W" | "T" | "H":
                node = self._by_inode[step.inode]
                assert isinstance(node, File)
                if step.kind == "T":
                    node.truncate(step.position)
                elif step.kind == "W" or node.now[step.position : step.position + len(step.data)] != step.data:
                    node.write(step.position, step.data)
            case "!":
                raise NotImplementedError(f"the disk's model does not know {step.data.decode()}")

    def _at(self, path: str) -> tuple[Directory, str]:
        *parents, name = path.split("/")
        directory = self.root
        for parent in parents:
            node = directory.now[parent]
            assert isinstance(node, Directory)
            directory = node
        return directory, name

    def _change(self, *change: tuple[Directory, str, Node | None]) -> None:
        self.changes.append(list(change))
        _apply(change, synced=False)

    def _sync_names(self, directory: Directory) -> None:
        """What was done in the directory is certain, and what had been done before to the same names elsewhere."""
        certain = self._with_earlier(lambda change: any(where is directory for where, _, _ in change))
        for change in certain:
            _apply(change, synced=True)
        gone = {id(change) for change in certain}
        self.changes = [change for change in self.changes if id(change) not in gone]

    def _with_earlier(self, is_wanted: Callable[[Change], bool]) -> list[Change]:
        """Return the wanted changes, and those before them of the same names, in order."""
        found: list[Change] = []
        touched: set[tuple[int, str]] = set()
        for change in reversed(self.changes):
            if is_wanted(change) or any((id(where), name) in touched for where, name, _ in change):
                touched.update((id(where), name) for where, name, _ in change)
                found.append(change)
        return found[::-1]

    def cut(self, target: Path, dice: random.Random, luck: float | None) -> None:
        """Make a directory as the disk may be after a power cut now."""
        names = {id(node): dict(node.synced) for node in self._by_inode.values() if isinstance(node, Directory)}
        names[id(self.root)] = dict(self.root.synced)
        for change in self._survivors(dice, luck):
            for where, name, node in change:
                _put(names.setdefault(id(where), {}), name, node)
        todo = [(self.root, str(target))]
        while todo:
            directory, path = todo.pop()
            os.mkdir(path)
            for name, node in names.get(id(directory), {}).items():
                if isinstance(node, Directory):
                    todo.append((node, f"{path}/{name}"))
                    continue
                with open(f"{path}/{name}", "wb") as file:
                    file.write(node.survivor(dice, luck))

    def _survivors(self, dice: random.Random, luck: float | None) -> list[Change]:
        if luck == 0 or luck == 1:
            return self.changes if luck else []
        if luck == LAST:
            return self._with_earlier(lambda change: change is self.changes[-1])
        if dice.random() < 0.5:
            return self.changes[: dice.randint(0, len(self.changes))]
        lost: set[tuple[int, str]] = set()
        survived = []
        chance = dice.choice([0.2, 0.5, 0.8])
        for change in self.changes:
            if dice.random() < chance and not any((id(where), name) in lost for where, name, _ in change):
                survived.append(change)
            else:
                lost.update((id(where), name) for where, name, _ in change)
        return survived


def _apply(change: Change | tuple[tuple[Directory, str, Node | None], ...], *, synced: bool) -> None:
    for where, name, node in change:
        _put(where.synced if synced else where.now, name, node)


def _put(names: dict[str, Node], name: str, node: Node | None) -> None:
    if node is None:
        names.pop(name, None)
    else:
        names[name] = node
