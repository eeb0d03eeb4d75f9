"""Threads, conditions and flags that no interrupt leaves locked, half begun or asleep."""

from __future__ import annotations

import ctypes
import os
import signal
import threading
from pathlib import Path

import pytest

from klamm.disk import _os
from klamm.disk.threads import DaemonThread, StopFlag
from tests.interrupts import Injected
from tests.procs import until


def test_a_signal_handler_may_set_a_flag_wherever_it_interrupts_the_wait_for_it() -> None:
    for _ in range(50):
        flag = StopFlag()
        before = signal.signal(signal.SIGALRM, lambda *_, flag=flag: flag.set())
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.001)
            assert flag.wait(30) and flag.is_set()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)


def test_a_flag_that_is_not_set_in_time_says_so() -> None:
    flag = StopFlag()
    assert not flag.wait(0.01)
    flag.set()
    assert flag.wait(0)


def test_notify_wakes_one_thread_of_its_condition_and_more_than_one_wakes_all() -> None:
    monitor = _os.Monitor()
    first, second = _os.Condition(monitor), _os.Condition(monitor)
    tickets, woken, asleep = [0], [], []

    def wait(name: str, condition: _os.Condition) -> None:
        with monitor:
            asleep.append(name)
            while not tickets[0]:
                condition.wait(30)
            tickets[0] -= 1
            woken.append(name)

    threads = [DaemonThread(wait, "wait", name, first) for name in "abc"] + [DaemonThread(wait, "wait", "d", second)]
    until(lambda: len(asleep) == 4, "all wait")
    with monitor:
        tickets[0] = 1
        first.notify()
    until(lambda: len(woken) == 1, "one is woken")
    assert woken[0] in "abc"
    with monitor:
        tickets[0] = 3
        first.notify(2)
        second.notify()
    assert all(thread.join(30) for thread in threads)
    assert sorted(woken) == list("abcd")


def test_a_thread_that_is_interrupted_when_it_is_woken_wakes_another_one() -> None:
    """Its handler runs before it looks; without passing it on, the task that it was woken for would wait for ever."""
    monitor = _os.Monitor()
    condition = _os.Condition(monitor)
    ready, taken = [0], []

    def other() -> None:
        with monitor:
            while not ready[0]:
                condition.wait(30)
            taken.append("other")

    def notify_and_raise(*_: object) -> None:
        ready[0] = 1
        condition.notify()
        raise Injected

    before = signal.signal(signal.SIGALRM, notify_and_raise)
    try:
        thread = DaemonThread(other, "other")
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with pytest.raises(Injected), monitor:
            condition.wait(30)
        assert thread.join(10), "the other one was never woken"
        assert taken == ["other"]
        with monitor:  # it is free
            pass
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_a_thread_begins_though_an_exception_comes_to_the_one_that_starts_it(tmp_path: Path) -> None:
    """CPython 3.11 takes a thread that was not scheduled yet for its parent."""
    set_exception = ctypes.pythonapi.PyThreadState_SetAsyncExc
    ident, kind = ctypes.c_ulong(threading.get_ident()), ctypes.py_object(Injected)
    began: list[int] = []
    for number in range(300):
        threads: list[DaemonThread] = []
        try:
            threads.append(DaemonThread(began.append, "begins", number))
            set_exception(ident, kind)
            for _ in range(100):  # here at the latest, unless it came to the new thread
                os.getpid()
        except Injected:
            pass
        assert threads[0].join(10), f"thread {number} did not end"
        assert began[-1] == number, f"thread {number} never began"
