"""Signals end a run: the first lets handlers end and commits, the second does not wait; workers take no notice."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

import klamm
from tests.client.conftest import fill
from tests.client.handlers import Noting
from tests.client.test_workers import committed
from tests.procs import STRICT, until

ROOT = Path(__file__).parent.parent.parent
SIGNALS = [signal.SIGINT, signal.SIGTERM]

SCRIPT = """
import os, sys, threading, time
from pathlib import Path
import klamm
from tests.client.handlers import Holding, Noting
def handle(record):
    os.write(1, b"ready\\n")
    {body}
async def handle_async(record):
    import asyncio
    os.write(1, b"ready\\n")
    await asyncio.sleep(0.2)
if __name__ == "__main__":
    with klamm.open(sys.argv[1]) as store, store.consumer("orders", group="g") as consumer:
        report = consumer.run({handler}, 2{options})
    print("done", report.done, flush=True)
"""


@contextmanager
def script(path: Path, *arguments: str, **parts: str) -> Iterator[subprocess.Popen[str]]:
    """A program that runs workers, in a process group of its own."""
    code = SCRIPT.format(**{"body": "pass", "handler": "handle", "options": "", **parts})
    process = subprocess.Popen(
        [sys.executable, *STRICT, "-c", code, str(path), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        os.killpg(process.pid, signal.SIGKILL) if process.poll() is None else None
        process.wait()


def ready(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    assert process.stdout.readline() == process.stdout.readline() == "ready\n"


def outcome(process: subprocess.Popen[str]) -> tuple[str, str, int]:
    return (*process.communicate(timeout=60), process.returncode)


@pytest.mark.parametrize("number", SIGNALS)
@pytest.mark.parametrize(
    "parts", [{}, {"body": "time.sleep(0.2)"}, {"handler": "handle_async"}], ids=["waits", "handles", "awaits"]
)
def test_a_signal_ends_a_run_quietly(orders: klamm.Store, path: Path, number: int, parts: dict[str, str]) -> None:
    fill(orders, 2)
    with script(path, **parts) as process:
        ready(process)
        process.send_signal(number)
        assert outcome(process) == ("done 2\n", "", 0)
    assert committed(orders, "g") == 2


@pytest.mark.parametrize("number", SIGNALS)
def test_a_second_signal_waits_for_no_handler(orders: klamm.Store, path: Path, number: int) -> None:
    fill(orders, 2)
    with script(path, body="threading.Event().wait()") as process:
        ready(process)
        until(lambda: process.poll() is not None or process.send_signal(number), "it ends")
        _, err, code = outcome(process)
    if number == signal.SIGINT:
        assert "KeyboardInterrupt" in err
    else:
        assert err == ""
        assert code in (128 + signal.SIGTERM, -signal.SIGTERM)  # the latter if a third one was faster than its end


def test_a_signal_waits_for_a_hung_handler_no_longer_than_grace(orders: klamm.Store, path: Path) -> None:
    fill(orders, 2)
    with script(path, body="threading.Event().wait(60 * record.offset)", options=", grace=0.5") as process:
        ready(process)
        process.send_signal(signal.SIGTERM)
        out, err, code = outcome(process)
    assert (out, code) == ("done 1\n", 0)
    assert "orders/0 at offset 1: the handler has not ended within 0.5 s" in err
    assert committed(orders, "g") == 1


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_to_all_processes_of_a_run_ends_it_like_one_to_the_reader(
    orders: klamm.Store, path: Path, tmp_path: Path, number: int
) -> None:
    """As a terminal sends Ctrl-C, and systemd SIGTERM. Handlers that run end."""
    fill(orders, 2)
    handler = Noting(tmp_path)
    with script(path, str(tmp_path), handler="Holding(Path(sys.argv[2]))", options=", processes=True") as process:
        until(lambda: (tmp_path / "notes").exists() and len(handler.notes()) == 2, "two workers have a record each")
        os.killpg(process.pid, number)
        (tmp_path / "go").touch()
        assert outcome(process) == ("done 2\n", "", 0)
    assert committed(orders, "g") == 2


def test_a_signal_to_all_processes_while_workers_start_is_no_error(
    orders: klamm.Store, path: Path, tmp_path: Path
) -> None:
    """From its first instruction on a worker process takes no notice of signals."""
    fill(orders, 2)
    with script(path, str(tmp_path), handler="Noting(Path(sys.argv[2]))", options=", processes=True") as process:

        def has_worker() -> bool:
            with suppress(FileNotFoundError, ProcessLookupError):  # a thread, or a process, that has just ended
                tasks = Path(f"/proc/{process.pid}/task").iterdir()
                pids = [pid for task in tasks for pid in (task / "children").read_text().split()]
                return any(b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes() for pid in pids)
            return False

        until(has_worker, "a worker process is started")
        os.killpg(process.pid, signal.SIGTERM)
        out, err, code = outcome(process)
    assert (err, code) == ("", 0) and out.startswith("done ")


def test_a_program_that_handles_sigterm_keeps_its_handler(orders: klamm.Store) -> None:
    fill(orders, 1)
    seen: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: seen.append(number))
    try:
        with orders.consumer("orders", wait=0) as consumer:
            consumer.run(lambda record: os.kill(os.getpid(), signal.SIGTERM))
        assert seen == [signal.SIGTERM]
    finally:
        signal.signal(signal.SIGTERM, before)
    with orders.consumer("orders", wait=0) as consumer:
        consumer.run(print)
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


SIGNAL_AT_THE_END = """
import signal, sys
import klamm
from klamm.client.work.thread_workers import ThreadWorkers
def trace(frame, event, argument):
    if frame.f_code is ThreadWorkers.end.__code__:
        signal.raise_signal(signal.SIGTERM)
def fail(record):
    raise ValueError("bad")
with klamm.open(sys.argv[1]) as store, store.consumer("orders", group="g") as consumer:
    sys.settrace(trace)
    try:
        consumer.run(fail, 1)
    except ValueError as error:
        print("raised", error, flush=True)
"""


def test_a_signal_that_comes_while_a_run_ends_its_workers_lets_it_end_them(orders: klamm.Store) -> None:
    fill(orders, 5)
    command = [sys.executable, *STRICT, "-c", SIGNAL_AT_THE_END, orders.path]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=60)
    assert (done.returncode, done.stdout) == (0, "raised bad\n"), done.stderr
