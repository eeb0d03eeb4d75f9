"""What every page is given: the console, and the visit."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import urlencode

from klamm.console.errors import Refused
from klamm.console.text import command

if TYPE_CHECKING:
    from klamm.api import Store
    from klamm.console.options import ConsoleOptions
    from klamm.console.sampler import Sampler

__all__ = ["Console", "Visit"]

_PAUSE_S = 0.25


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

    def number(self, name: str, default: int, *, least: int = 0, most: int) -> int:
        """Return a whole number within bounds; the default if the field is empty."""
        text = self.one(name)
        if not text:
            return default
        if not text.isascii() or not text.isdigit() or not least <= int(text) <= most:
            raise Refused(400, f"{name}: {text!r} is invalid", f"expected a whole number from {least:,} to {most:,}")
        return int(text)

    def address(self, path: str | None = None, **changes: object) -> str:
        """Return this address with some fields changed; None or empty leaves a field out."""
        fields = [(name, value) for name, values in self.query.items() for value in values if name not in changes]
        fields += [(name, str(value)) for name, value in changes.items() if value not in (None, "")]
        kept = [(name, value) for name, value in fields if value != "" and name != "save"]
        return (self.path if path is None else path) + (f"?{urlencode(kept)}" if kept else "")
