"""The runner of mutants: one that hangs, whatever it hangs in, ends and is noticed."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

from tests.mutants import run
from tests.procs import until

HANGING = ["sh", "-c", "trap '' ALRM INT TERM; sleep 600 & echo $!; printf 'tests/test_a.py::test_b[1] '; wait"]
"""As native code that waits: no signal handler runs."""


def is_gone(pid: int) -> bool:
    """Whether a process has ended, though its parent may not have asked for its end yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_a_run_that_writes_nothing_any_more_is_killed_with_its_children_and_counts_as_noticed() -> None:
    for hung_s in (0.3, 3, 30):  # on a busy machine it takes a while to begin
        code, output = run.run_bounded(HANGING, 600, hung_s, threading.Event())
        assert code == run.FAILED
        if "test_b" in output:
            break
    assert run._TIMEOUT.search(output)
    assert run._failed_test(output) == "tests/test_a.py::test_b"
    pid = int(output.split()[0])
    until(lambda: is_gone(pid), "the child of the run has ended")


def test_a_run_that_is_interrupted_ends_at_once_and_one_that_writes_goes_on_to_its_end() -> None:
    stop = threading.Event()
    command = [sys.executable, "-c", "import time\nfor _ in range(4): print('.', flush=True); time.sleep(0.2)\nexit(5)"]
    assert run.run_bounded(command, 600, 30, stop) == (5, ".\n" * 4 + "\n")
    stop.set()
    code, output = run.run_bounded(HANGING, 600, 600, stop)
    assert code == run.FAILED and not run._TIMEOUT.search(output)
