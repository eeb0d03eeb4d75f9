"""Child processes of tests: answers, failures, bounds, and who ends with whom."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import pytest

from tests.procs import Child, Flag, children, until
from tests.rig import dies

MEGABYTE = b"x" * (1 << 20)  # sixteen times what a pipe holds


def test_an_answer_larger_than_a_pipe_comes_back() -> None:
    with children() as start:
        assert start(lambda: MEGABYTE).answer() == MEGABYTE


def test_a_child_ends_though_nobody_asks_for_its_large_answer() -> None:
    with children() as start:
        assert start(lambda: MEGABYTE).ended() == 0
        child = start(lambda: MEGABYTE)
        until(lambda: not child.running, "it ends")
        assert child.answer() == MEGABYTE


def test_an_answer_comes_though_a_grandchild_keeps_the_pipe_open(tmp_path: Path) -> None:
    def fork() -> int:
        pid = os.fork()
        if not pid:
            time.sleep(60)
            os._exit(0)
        return pid

    def fork_and_die() -> None:
        (tmp_path / "pid").write_text(str(fork()))
        os.kill(os.getpid(), signal.SIGKILL)

    with children() as start:
        os.kill(start(fork).answer(), signal.SIGKILL)
        assert os.WTERMSIG(start(fork_and_die).ended()) == signal.SIGKILL
        os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)


def fail() -> None:
    raise ValueError("what a child says")


def test_a_failure_of_a_child_is_told_with_its_traceback() -> None:
    with children() as start:
        with pytest.raises(AssertionError, match=r"exit code 1\n(?s:.*)in fail\n(?s:.*)ValueError: what a child says"):
            start(fail).answer()
        child = start(fail)
        assert os.waitstatus_to_exitcode(child.ended()) == 1
        assert "what a child says" in child.error
    with pytest.raises(AssertionError, match="what a child says"):
        dies(fail)


def test_an_answer_that_cannot_be_pickled_is_a_failure_of_the_child() -> None:
    with children() as start, pytest.raises(AssertionError, match="pickle"):
        start(lambda: lambda: None).answer()


def test_a_killed_child_has_no_answer() -> None:
    assert dies(lambda: os.kill(os.getpid(), signal.SIGKILL))
    with children() as start, pytest.raises(AssertionError, match="SIGKILL"):
        start(lambda: os.kill(os.getpid(), signal.SIGKILL)).answer()


def test_no_wait_is_without_a_bound() -> None:
    with children() as start:
        child = start(lambda: time.sleep(60))
        for wait in child.ended, child.answer, child.stopped:
            with pytest.raises(AssertionError, match=r"not within 0\.05 s"):
                wait(0.05)
        assert child.running


def test_children_end_with_their_block() -> None:
    with children() as start:
        child = start(lambda: time.sleep(60))
    assert os.WTERMSIG(child.ended()) == signal.SIGKILL


@pytest.mark.skipif(sys.platform != "linux", reason="PR_SET_PDEATHSIG is Linux's")
def test_a_child_does_not_outlive_a_killed_parent(tmp_path: Path) -> None:
    running = Flag(tmp_path / "running")

    def sleep() -> None:
        running.up()
        time.sleep(600)

    def parent() -> None:
        child = Child(sleep)
        (tmp_path / "pid").write_text(str(child.pid))
        running.wait()  # one that had not begun would see for itself that its parent has ended
        os.kill(os.getpid(), signal.SIGKILL)

    def gone(pid: int) -> bool:
        try:
            return Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1][0] == "Z"
        except FileNotFoundError:
            return True

    with children() as start:
        start(parent).ended()
    pid = int((tmp_path / "pid").read_text())
    try:
        until(lambda: gone(pid), "the grandchild ends", seconds=30)
    finally:
        if not gone(pid):  # else a test that fails leaves it, and it has the output of this process open
            os.kill(pid, signal.SIGKILL)
