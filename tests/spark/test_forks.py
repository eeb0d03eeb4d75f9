"""A fork is what was started: whoever started it cannot tell the difference."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.procs import until
from tests.spark import forks
from tests.spark.classes import PYTHONPATH

pytest.importorskip("pyspark")
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="forks are for Linux only")

PROGRAM = """\
import atexit, json, os, signal, sys
if sys.argv[1] == "told":
    atexit.register(print, "at its end")
    told = {"argv": sys.argv[1:], "name": __name__, "here": os.getcwd(), "zone": os.environ.get("TZ")}
    told |= {"pid": os.getpid(), "path": sys.path[0], "has_pyarrow": "pyarrow" in sys.modules}
    print(json.dumps({**told, "is_deaf": signal.getsignal(signal.SIGINT) == signal.SIG_IGN}), flush=True)
    print("heard", sys.stdin.read(), file=sys.stderr)
    sys.exit(7)
if sys.argv[1] == "fails":
    raise LookupError("nobody is there")
signal.signal(signal.SIGTERM, lambda *_: sys.exit(9))
print(os.getpid(), flush=True)
while True:
    signal.pause()
"""


@pytest.fixture
def start(tmp_path: Path) -> Any:
    """Start a module as Spark does."""
    (tmp_path / "program.py").write_text(PROGRAM)

    @contextmanager
    def started(*arguments: str, **more: str) -> Iterator[subprocess.Popen[str]]:
        environment = {
            **os.environ,
            "PYTHONPATH": f"{PYTHONPATH}:{tmp_path}",
            "PYTHON_WORKER_FACTORY_PORT": "1",
            **more,
        }
        pipes: Any = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        command = [sys.executable, "-m", "program", *arguments]
        with subprocess.Popen(command, env=environment, cwd=tmp_path, text=True, **pipes) as process:
            try:
                yield process
            finally:
                process.kill()

    return started


def is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_fork_has_what_was_given_and_its_end_is_told(start: Any, tmp_path: Path) -> None:
    with start("told", "a b", "-c", TZ="Asia/Tokyo") as process:
        said, complained = process.communicate("all of this", timeout=60)
        told = json.loads(said.splitlines()[0])
    assert said.splitlines()[1:] == ["at its end"]
    assert (process.returncode, complained) == (7, "heard all of this\n")
    assert told.pop("pid") != process.pid and told.pop("has_pyarrow")
    here = str(tmp_path)
    assert told == {
        "argv": ["told", "a b", "-c"],
        "name": "__main__",
        "here": here,
        "zone": "Asia/Tokyo",
        "path": here,
        "is_deaf": False,
    }


def test_an_error_of_a_fork_is_told_where_it_was_started(start: Any) -> None:
    with start("fails") as process:
        _, complained = process.communicate(timeout=60)
    assert process.returncode == 1 and complained.endswith("LookupError: nobody is there\n")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 9), (signal.SIGKILL, -signal.SIGKILL)])
def test_who_ends_it_ends_its_fork(start: Any, number: signal.Signals, code: int) -> None:
    with start("stays") as process:
        pid = int(process.stdout.readline())
        assert pid != process.pid and is_there(pid)
        process.send_signal(number)
        assert process.wait(60) == code
        until(lambda: not is_there(pid), "the fork ends", 60)


def test_others_go_on_when_one_ends_and_nobody_is_needed_to_go_on(start: Any) -> None:
    with start("stays") as first, start("stays") as second:
        pids = [int(each.stdout.readline()) for each in (first, second)]
        first.terminate()
        assert first.wait(60) == 9
        assert [is_there(pid) for pid in pids] == [False, True]
        with start("told") as third:
            third.communicate("", timeout=60)
            assert third.returncode == 7


def test_without_forks_there_is_one_process(start: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(forks.NAME)
    with start("told") as process:
        said, _ = process.communicate("", timeout=60)
    told = json.loads(said.splitlines()[0])
    assert (told["pid"], told["has_pyarrow"], told["argv"]) == (process.pid, False, ["told"])
