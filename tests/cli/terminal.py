"""A terminal of 80 columns, with a shell in it, driven through tmux: what a person would see, and keys they press."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from tests.procs import PATIENCE
from tests.serving import KLAMM


class Terminal:
    """One window of a tmux server of its own."""

    def __init__(self, socket: str, environment: Mapping[str, str]) -> None:
        self._tmux = ["tmux", "-S", socket, "-f", os.devnull]
        self._run(
            *("new-session", "-d", "-x", "80", "-y", "40"),
            *("env", "-i", *(f"{name}={value}" for name, value in environment.items())),
            *("bash", "--norc", "--noprofile", "-i"),
        )
        self._count = 0

    def _run(self, *arguments: str) -> str:
        return subprocess.run([*self._tmux, *arguments], capture_output=True, text=True, check=True, timeout=30).stdout

    @property
    def screen(self) -> str:
        """What is to be seen, without colours."""
        return self._run("capture-pane", "-p")

    @property
    def painted(self) -> str:
        """The same with the sequences that colour it."""
        return self._run("capture-pane", "-p", "-e")

    def press(self, *keys: str) -> None:
        """Keys by tmux's names: Enter, C-c, C-d."""
        self._run("send-keys", *keys)

    def type(self, line: str) -> None:
        self._run("send-keys", "-l", re.sub(";$", r"\\;", line))  # which tmux would take for the end of its command
        self._run("send-keys", "Enter")

    def until(self, holds: Callable[[str], object], what: str) -> str:
        """The first screen of which that holds, of those since the last command was started."""
        deadline = time.monotonic() + PATIENCE
        while not (self._is_fresh(screen := self.screen) and holds(screen)):
            assert time.monotonic() < deadline, f"{what}: not within {PATIENCE} s\n{screen.rstrip()}"
            time.sleep(0.03)  # each look is a process
        return screen

    def shows(self, text: str) -> str:
        """The screen, once that is on it."""
        return self.until(lambda screen: text in screen, f"{text!r} appears")

    def start(self, command: str) -> None:
        """A command on an empty screen; its exit code follows it."""
        self._count += 1  # else what the last one left on the screen could be taken for its
        self.type(f"clear; echo start-{self._count}; {command}; echo end-{self._count}=$?")

    def ended(self) -> str:
        """The screen when the exit code is there."""
        return self.until(self._end, "a command ends")

    def _is_fresh(self, screen: str) -> bool:
        return f"\nstart-{self._count}\n" in f"\n{screen}" or self._end(screen) is not None

    def _end(self, screen: str) -> re.Match[str] | None:
        return re.search(rf"end-{self._count}=(\d+)", screen)

    def code(self) -> int:
        """How the last command ended."""
        found = self._end(self.ended())
        assert found is not None
        return int(found[1])

    def run(self, command: str) -> str:
        """A command from its start to its end: what is on the screen then."""
        self.start(command)
        return self.ended()

    def close(self) -> None:
        subprocess.run([*self._tmux, "kill-server"], capture_output=True, timeout=30)


@contextmanager
def terminal(**environment: str) -> Iterator[Terminal]:
    """A terminal that does not outlive the block."""
    folder = tempfile.mkdtemp(prefix="tmux")  # a short path: names of sockets have 108 bytes
    said = {
        "PATH": f"{KLAMM.parent}:{os.environ['PATH']}",
        "TERM": "screen-256color",
        "LANG": "C.UTF-8",
        "PS1": "$ ",
        "HOME": folder,
        **environment,
    }
    opened = Terminal(f"{folder}/socket", said)
    try:
        yield opened
    finally:
        opened.close()
        shutil.rmtree(folder, ignore_errors=True)
