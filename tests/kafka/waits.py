"""The environment of a `klamm serve` whose calls that wait for a disk or a lock are held, or written down: waits.c."""

from __future__ import annotations

from pathlib import Path

from tests.procs import Flag
from tests.shims import compiled

__all__ = ["hold", "watch"]


def _preloaded() -> dict[str, str]:
    return {"LD_PRELOAD": str(compiled(Path(__file__).with_name("waits.c")))}


def hold(held: Flag, seen: Path, *, path: str, calls: str) -> dict[str, str]:
    """Hold syncs ("sync") or reads ("read") of files with `path` in their name while `held` is up; then make `seen`."""
    return {
        **_preloaded(),
        "HELD": held.path,
        "HELD_PATH": path,
        "HELD_CALLS": calls,
        "HELD_SEEN": str(seen),
    }


def watch(watched: Flag, seen: Path, *, reads_of: str = "") -> dict[str, str]:
    """While `watched` is up, what the first thread calls that may wait is written to `seen`, a line each; with
    `reads_of`, also reads of files that have this in their name.
    """
    environment = {**_preloaded(), "WATCHED": watched.path, "WATCHED_SEEN": str(seen)}
    return {**environment, "WATCHED_PATH": reads_of} if reads_of else environment
