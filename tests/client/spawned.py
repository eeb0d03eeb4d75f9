"""Processes that are started, not forked: RocksDB does not survive a fork of whoever uses it.

Such a process evaluates expressions that it is sent, and sends back what they give; `store`, `table` and `klamm` are
names it knows.
"""

from __future__ import annotations

import base64
import os
import pickle
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.procs import PATIENCE, readable, until

ROOT = Path(__file__).parent.parent.parent


class Spawned:
    """A process with the store open, and a table of it."""

    def __init__(self, path: os.PathLike[str] | str, topic: str, **options: Any) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.client.spawned", os.fspath(path), topic, repr(options)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
        )

    def send(self, expression: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(expression.encode() + b"\n")

    def receive(self, seconds: float = PATIENCE) -> Any:
        assert self._process.stdout is not None
        pipe = self._process.stdout.fileno()
        line = b""
        while not line.endswith(b"\n"):
            assert readable(pipe, seconds), f"no answer within {seconds} s"
            read = os.read(pipe, 1 << 20)
            assert read, f"the process ended with {self._process.wait()}"
            line += read
        answer = pickle.loads(base64.b64decode(line))
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def __call__(self, expression: str, seconds: float = PATIENCE) -> Any:
        """What the expression gives there. An error there is raised here."""
        self.send(expression)
        return self.receive(seconds)

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def stop(self) -> None:
        """Returns when it has stopped."""
        self.signal(signal.SIGSTOP)
        threads = Path(f"/proc/{self._process.pid}/task")
        until(
            lambda: all((each / "stat").read_text().rsplit(") ", 1)[1][0] == "T" for each in threads.iterdir()),
            f"process {self._process.pid} stops",
        )

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(PATIENCE)

    def close(self) -> None:
        self.signal(signal.SIGCONT)
        self.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()


@contextmanager
def spawned() -> Iterator[Callable[..., Spawned]]:
    """Processes that do not outlive the block."""
    made: list[Spawned] = []

    def start(*where: Any, **options: Any) -> Spawned:
        made.append(Spawned(*where, **options))
        return made[-1]

    try:
        yield start
    finally:
        for each in made:
            each.close()


def main(path: str, topic: str, options: str) -> None:
    import klamm

    store = klamm.open(path)
    names = {"klamm": klamm, "store": store, "table": store.table(topic, **eval(options)), "os": os}
    for line in sys.stdin.buffer:
        try:
            answer = eval(line, names)
        except Exception as error:
            traceback.print_exc()
            answer = error
        try:
            pickled = pickle.dumps(answer)
            pickle.loads(pickled)
        except Exception:
            pickled = pickle.dumps(RuntimeError(repr(answer)))
        sys.stdout.buffer.write(base64.b64encode(pickled) + b"\n")
        sys.stdout.buffer.flush()


__all__ = ["Spawned", "spawned"]

if __name__ == "__main__":
    main(*sys.argv[1:])
