"""Find the processes that hold bytes of a lock file, and whether they are stopped. No lock depends on it.

The kernel knows: /proc/<pid>/fdinfo/<fd> lists the locks of a descriptor. A process sees that of processes of the same
user, in its own pid namespace (a container) and those inside of it; root sees all. For other processes there is the
word beside a byte in `heads` (KlammLockNote in os.h), which also says since when:

    bits 0-21 pid, 22-31 hash of the pid namespace, 32-63 when the byte was taken: monotonic time, tenths of a second

The word names the last process that took the byte; it may have released the byte, or have ended. A pid that was reused
is recognised by the start time of its process, which is later than the time in the word.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from typing import NamedTuple

from klamm.disk import _os

__all__ = [
    "NONE_NOW",
    "UNKNOWN",
    "HeldRange",
    "Holder",
    "Process",
    "find_holder",
    "find_process",
    "held_ranges",
    "recorded_holder",
]

_DELETED = " (deleted)"  # what the kernel adds to the name of a file that was removed
_CLOCK_TICKS = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100
_MAX_CALLS = 6  # of a thread, that are shown
_SLACK_MS = 500  # words have tenths of a second, start times hundredths, by another clock


class Process(NamedTuple):
    """A process that this one can see."""

    pid: int
    command: str
    started_ms: int
    """Wall time."""
    is_stopped: bool
    """By a signal (SIGSTOP, Ctrl-Z), by a debugger, or with its container (`docker pause`)."""


class HeldRange(NamedTuple):
    """Bytes [start, start + length) of a lock file that a process holds."""

    start: int
    length: int
    is_shared: bool
    process: Process


class Holder(NamedTuple):
    """The process that holds a byte. `process` is None if it cannot be seen from here."""

    process: Process | None
    pid: int | None
    """As recorded; in another pid namespace it means another process, and is None."""
    since_ms: int | None
    """Wall time."""
    thread: int | None = None
    """Of this process, if that is known."""

    def __str__(self) -> str:
        if self == NONE_NOW:
            return "no process just now"
        if self.process is None:
            name = "a process that cannot be seen from here" if self.pid is None else f"pid {self.pid}"
        elif self.process.pid == os.getpid():
            name = "another thread of this process" if self.thread is None else _describe_thread(self.thread)
        else:
            name = f"pid {self.process.pid} ({self.process.command})"
            if self.process.is_stopped:
                name += ", which is stopped"
        if self.since_ms is None:
            return name
        return f"{name}, for {max(0, time.time_ns() // 1_000_000 - self.since_ms) / 1000:.1f} s"

    @property
    def hint(self) -> str:
        """Return a hint: what to do about the holder."""
        if self.process is not None and self.process.pid == os.getpid():
            return "let that thread go on"
        if self == NONE_NOW:
            return "try again: other processes held it for moments, one after the other"
        if self.process is None:
            return "`klamm who` as root, outside of containers, shows which process that is"
        if self.process.is_stopped:
            return f"continue it with `kill -CONT {self.process.pid}`, or end it: the lock is free when it has ended"
        return f"wait for it, or end it: the lock is free when pid {self.process.pid} has ended"


UNKNOWN = Holder(None, None, None)
NONE_NOW = Holder(None, 0, None)


def _describe_thread(number: int) -> str:
    """Return the name of a thread of this process, and its innermost calls."""
    name = next((each.name for each in threading.enumerate() if each.ident == number), str(number))
    frame = sys._current_frames().get(number)  # noqa: SLF001  # the documented way
    calls: list[str] = []
    while frame is not None and len(calls) < _MAX_CALLS:
        code = frame.f_code
        calls.append(f"{os.path.basename(code.co_filename)}:{frame.f_lineno} in {code.co_name}")
        frame = frame.f_back
    return f"thread {name} of this process ({', '.join(calls) or 'ended'})"


def find_process(pid: int) -> Process | None:
    """Return what /proc says about a process; None if there is none, or no /proc."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            # pid (name) state …: the name may hold anything, also brackets
            name, _, rest = file.read().partition("(")[2].rpartition(")")
        fields = rest.split()
        state, started_ticks = fields[0], int(fields[19])
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            command = _in_one_line(file.read().replace(b"\0", b" ").decode(errors="replace"))
    except (OSError, ValueError, IndexError):
        return None
    if state in "ZX":
        return None
    age_ms = _os.boot_ms() - started_ticks * 1000 // _CLOCK_TICKS
    started_ms = time.time_ns() // 1_000_000 - age_ms
    return Process(pid, (command or _in_one_line(name))[:200], started_ms, state in "Tt" or _is_frozen(pid))


def _in_one_line(command: str) -> str:
    """Return a command for messages: in one line, without control characters (`python -c` may have a whole program)."""
    return " ".join("".join(letter if letter.isprintable() else " " for letter in command).split())


def _is_frozen(pid: int) -> bool:
    """Return whether the process is in a control group that is frozen, as `docker pause` does."""
    try:
        with open(f"/proc/{pid}/cgroup", encoding="utf-8", errors="replace") as file:
            groups = [line.rstrip("\n").split(":", 2) for line in file]
    except OSError:
        return False
    for number, controllers, path in (group for group in groups if len(group) == 3):
        if number == "0" and _read(f"/sys/fs/cgroup{path}/cgroup.events", "frozen 1"):
            return True
        if controllers == "freezer" and _read(f"/sys/fs/cgroup/freezer{path}/freezer.state", "FROZEN"):
            return True
    return False


def _read(path: str, line: str) -> bool:
    """Return whether the file has that line."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return line in file.read().splitlines()
    except OSError:
        return False


def held_ranges(path: str, pids: list[int] | None = None) -> list[HeldRange]:
    """Return the locks that visible processes, or only `pids`, hold on the file at `path`."""
    try:
        status = os.stat(path)
        if pids is None:
            pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    except OSError:
        return []
    found: list[HeldRange] = []
    for pid in pids:
        ranges = _ranges_of(pid, os.path.basename(path), status.st_ino)
        if ranges and (process := find_process(pid)) is not None:
            found += [HeldRange(*each, process) for each in ranges]
    return sorted(found, key=lambda each: (each.start, each.process.pid))


def _ranges_of(pid: int, name: str, inode: int) -> list[tuple[int, int, bool]]:
    """Return (start, length, is_shared) of the locks of a process on a file of that name and inode."""
    found: list[tuple[int, int, bool]] = []
    try:
        descriptors = os.listdir(f"/proc/{pid}/fd")
    except OSError:
        return found
    for fd in descriptors:
        try:
            target = os.readlink(f"/proc/{pid}/fd/{fd}")
            if os.path.basename(target.removesuffix(_DELETED)) != name:
                continue
            with open(f"/proc/{pid}/fdinfo/{fd}", encoding="ascii") as file:
                lines = [line.split() for line in file if line.startswith("lock:")]
        except OSError:  # closed, or ended
            continue
        for line in lines:  # lock: 1: OFDLCK ADVISORY WRITE -1 08:01:4711 0 0
            if len(line) == 9 and line[2] == "OFDLCK" and line[6].rpartition(":")[2] == str(inode):
                start = int(line[7])
                length = (1 << 63) - start if line[8] == "EOF" else int(line[8]) + 1 - start
                found.append((start, length, line[4] == "READ"))
    return found


def recorded_holder(word: int) -> Holder | None:
    """Return the holder that the word beside a byte names. None if no process ever took the byte, or that one has
    ended.
    """
    pid, namespace, taken = word & 0x3FFFFF, word >> 22 & 0x3FF, word >> 32
    if not word:
        return None
    held_ms = ((_os.monotonic_ms() // 100 - taken) & 0xFFFFFFFF) * 100
    since_ms = time.time_ns() // 1_000_000 - held_ms
    if namespace != _os.identity()[1]:
        return Holder(None, None, since_ms)
    process = find_process(pid)
    if process is None or process.started_ms > since_ms + _SLACK_MS:
        return None
    return Holder(process, pid, since_ms)


def find_holder(path: str, byte: int, word: int = 0) -> Holder | None:
    """Return the process that holds a byte of the file at `path`; None if no visible process seems to.

    `word` is the record beside the byte, if it has one.
    """
    recorded = recorded_holder(word)
    if recorded is not None and recorded.process is not None and _holds(path, byte, recorded.process.pid):
        return recorded
    for held in held_ranges(path):
        if held.start <= byte < held.start + held.length:
            return Holder(held.process, held.process.pid, None)
    if recorded is not None and recorded.pid == os.getpid():
        return NONE_NOW  # this process sees its own locks: it has released the byte
    return recorded


def _holds(path: str, byte: int, pid: int) -> bool:
    return any(held.start <= byte < held.start + held.length for held in held_ranges(path, [pid]))
