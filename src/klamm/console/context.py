"""The arguments of every page: the console, and the visit."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING
from urllib.parse import urlencode

from klamm.console.board import Board
from klamm.console.child import ChildCache
from klamm.console.errors import RequestError
from klamm.console.history import History
from klamm.console.mask import Mask
from klamm.console.redrives import LetterCounts, Redrives
from klamm.console.text import command

if TYPE_CHECKING:
    from klamm.api import Store
    from klamm.console.options import ConsoleOptions
    from klamm.console.sampler import Sampler

__all__ = ["Console", "Visit"]

_PAUSE_S = 0.25
_LONGEST_NUMBER = 20  # digits


@dataclass(frozen=True)
class Console:
    """A console of one store."""

    store: Store
    path: str
    """The store's path, as the user gave it."""
    options: ConsoleOptions
    sampler: Sampler
    is_ending: threading.Event = field(default_factory=threading.Event)
    """Set when the console ends: live pages end then, too."""

    @cached_property
    def mask(self) -> Mask:
        """Makes records that may be shown: every view that shows records passes them through it."""
        return Mask(self.options.mask)

    @cached_property
    def history(self) -> History:
        """What was recorded of groups."""
        return History(self.store)

    @cached_property
    def children(self) -> ChildCache:
        """Runs commands in processes of their own."""
        return ChildCache()

    @cached_property
    def letters(self) -> LetterCounts:
        """Counts dead letters."""
        return LetterCounts(self.store)

    @cached_property
    def redrives(self) -> Redrives:
        """Puts dead letters back."""
        return Redrives(self.store)

    @cached_property
    def board(self) -> Board:
        """Of the game of life, if one is played."""
        return Board(self.store)

    async def pause(self, seconds: float) -> None:
        """Sleep so long; not as long, if the console ends."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0 and not self.is_ending.is_set():
            await asyncio.sleep(min(left, _PAUSE_S))

    def command(self, *words: object) -> str:
        """Return a command line about this store: `klamm WORDS… --store PATH`."""
        return command("klamm", *words, "--store", self.path)


@dataclass(frozen=True)
class Visit:
    """One request of a visitor."""

    path: str
    params: Mapping[str, str] = field(default_factory=dict)
    """What the path has in its places: the name of a topic."""
    query: Mapping[str, list[str]] = field(default_factory=dict)
    csrf: str = ""
    theme: str = ""
    """"dark", "light" or empty: as the browser prefers."""
    is_saved: bool = False
    """Whether the page is to be one file, which opens without Klamm."""

    def one(self, name: str, default: str = "") -> str:
        """Return a field of the form or the address, without spaces around it."""
        values = self.query.get(name)
        return values[-1].strip() if values else default

    def raw(self, name: str) -> str:
        """Return a field as it was typed."""
        values = self.query.get(name)
        return values[-1] if values else ""

    def number(self, name: str, default: int, *, least: int = 0, most: int) -> int:
        """Return a whole number within bounds; the default if the field is empty."""
        text = self.one(name)
        if not text:
            return default
        is_number = text.isascii() and text.isdigit() and len(text) <= _LONGEST_NUMBER
        if not is_number or not least <= int(text) <= most:
            raise RequestError(
                400,
                f"{name}: {text[:_LONGEST_NUMBER]!r} is invalid",
                f"expected a whole number from {least:,} to {most:,}",
            )
        return int(text)

    def address(self, path: str | None = None, **changes: object) -> str:
        """Return this address with some fields changed; None or empty leaves a field out."""
        fields = [(name, value) for name, values in self.query.items() for value in values if name not in changes]
        fields += [(name, str(value)) for name, value in changes.items() if value not in (None, "")]
        kept = [(name, value) for name, value in fields if value != "" and name != "save"]
        return (self.path if path is None else path) + (f"?{urlencode(kept)}" if kept else "")
