"""What a figure depends on: the machine, how busy others keep it, and the sources that were measured.

Busy is measured, not guessed from the load, which counts the benchmark itself. Two numbers, in cores:

    others   CPU of all processes that are neither this one nor started by it, nor threads of the kernel (which write
             out what the benchmark wrote). A process counts with the children it has waited for, so that those that
             came and went are in it
    steal    what the hypervisor took

Both are taken before the first round and from then until each answer. If they come to more than a tenth of the cores
in either, the line is marked `busy`.
"""

from __future__ import annotations

import contextlib
import os
import platform
import subprocess
import time
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
MEASURED = ["src", "bench", "pyproject.toml", "requirements.lock", ":!bench/results", ":!bench/*.md"]
TICKS = os.sysconf("SC_CLK_TCK")
KERNEL = 2  # the parent of the kernel's threads
BEFORE_S = 0.5
LEAST_S = 1.0  # of a reading; answers that follow sooner share one
BUSY_SHARE = 0.1


# ---- other processes


class Process(NamedTuple):
    parent: int
    cpu: float
    """Seconds, user and system, with those of children that ended and were waited for."""


def read_processes() -> dict[int, Process]:
    """Return all processes that can be seen, by their ids."""
    processes = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError):  # it may end meanwhile
                fields = Path(f"/proc/{name}/stat").read_text(errors="replace").rsplit(")", 1)[1].split()
                processes[int(name)] = Process(int(fields[1]), sum(map(int, fields[11:15])) / TICKS)
    return processes


def others_of(processes: dict[int, Process], root: int) -> set[int]:
    """Return the processes that are not `root`, not below it, and no threads of the kernel."""
    own = {root, KERNEL}
    while below := {pid for pid, process in processes.items() if process.parent in own} - own:
        own |= below
    return set(processes) - own


def read_steal() -> float:
    """Return seconds, of all cores, since the start of the machine."""
    return int(Path("/proc/stat").read_text().split("\n", 1)[0].split()[8]) / TICKS


class Reading(NamedTuple):
    """Cores that were not there for the benchmark."""

    others: float
    steal: float

    def is_busy(self, cores: int) -> bool:
        return self.others + self.steal > BUSY_SHARE * cores


class Watch:
    """Reads how busy the machine is before the first round, and between answers."""

    def __init__(self, before_s: float = BEFORE_S) -> None:
        self._last: Reading | None = None
        self._begin = self._snapshot()
        time.sleep(before_s)
        self.before = self._advance()
        self._last = None

    def read(self) -> Reading:
        """Return the reading since the last one; that one itself if it is less than a second old."""
        if self._last is None or time.monotonic() - self._begin[0] >= LEAST_S:
            self._last = self._advance()
        return self._last

    def _advance(self) -> Reading:
        (was, others, steal), self._begin = self._begin, self._snapshot()
        seconds = max(self._begin[0] - was, 1 / TICKS)
        return Reading(
            *(max(0.0, new - old) / seconds for new, old in zip(self._begin[1:], (others, steal), strict=True))
        )

    @staticmethod
    def _snapshot() -> tuple[float, float, float]:
        processes = read_processes()
        cpu = sum(processes[pid].cpu for pid in others_of(processes, os.getpid()))
        return time.monotonic(), cpu, read_steal()


def cores() -> int:
    return len(os.sched_getaffinity(0))


def describe(path: str) -> dict[str, Any]:
    """Return what the figures depend on, with the file system of `path`; nothing that names the host."""
    model = ""
    with contextlib.suppress(OSError), open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
        model = next((line.split(":", 1)[1].strip() for line in file if line.startswith("model name")), "")
    df = subprocess.run(["df", "--output=fstype", path], capture_output=True, text=True, check=False).stdout
    return {
        "cpu": model or platform.machine(),
        "cores": cores(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30),
        "kernel": platform.release(),
        "file_system": df.split()[-1] if df else "",
        "python": platform.python_version(),
        "load": round(os.getloadavg()[0], 1),
    }


# ---- sources


class Sources(NamedTuple):
    """What was measured: the git tree of src/, the commit, and whether files differ from it."""

    tree: str | None
    commit: str
    dirty: bool


def read_sources() -> Sources:
    """Return the sources as they are now. Without git nothing is known of them, and they count as dirty."""
    tree, commit = _git("rev-parse", "HEAD:src"), _git("rev-parse", "--short", "HEAD")
    changed = _git("status", "--porcelain", "--", *MEASURED)
    return Sources(tree or None, commit or "unknown", changed != "" or not tree)


def _git(*arguments: str) -> str | None:
    try:
        run = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=False)
    except OSError:
        return None
    return run.stdout.strip() if run.returncode == 0 else None
