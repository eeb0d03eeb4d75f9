"""`klamm work`: a handler as a service: how it ends, what it logs, and what it says of modules that do not load."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

import klamm
from klamm.api.hints import HINTS
from tests.cli.conftest import Cli
from tests.procs import PATIENCE, until

ROOT = Path(__file__).parent.parent.parent
KLAMM = Path(sys.executable).parent / "klamm"

APP = """
import asyncio, logging, threading, time
together = threading.Barrier(2)
class Busy(Exception): ...
class Hall:
    @staticmethod
    def porter(record): ...
number = 5
def note(record):
    with open("notes", "ab") as notes:
        notes.write(b"%d\\n" % record.offset)
def charge(record):
    logging.getLogger("app").info("charging %s", record.value)
    note(record)
def charge_json(record):
    assert record.value["total"] > 0
    note(record)
def refuse(record):
    raise Busy("come back later")
def refuse_together(record):
    together.wait(30)
    raise Busy("come back later")
def hold(record):
    note(record)
    time.sleep(60)
def slowly(record):
    note(record)
    time.sleep(0.3)
async def notify(record):
    await asyncio.sleep(0)
    note(record)
"""


@pytest.fixture
def app(home: Path) -> Path:
    """The store with ten orders, and a module `app` beside it, in the current directory."""
    with klamm.open(home) as store:
        store.topics.create("orders", partitions=2)
        store.append_many("orders", [(b"k%d" % n, b"%d" % n) for n in range(10)], acks=1)
    (home.parent / "app.py").write_text(APP)
    return home.parent


class Working:
    """`klamm work` in a process of its own."""

    def __init__(self, process: subprocess.Popen[str], directory: Path) -> None:
        self.process = process
        self._notes = directory / "notes"

    def handled(self, count: int) -> None:
        """Wait until so many records are handled."""
        until(lambda: self._notes.exists() and self._notes.read_bytes().count(b"\n") >= count, f"{count} are handled")

    def ended(self) -> tuple[int, str, str]:
        out, err = self.process.communicate(timeout=PATIENCE)
        return self.process.returncode, out, err


def working(directory: Path, *arguments: str) -> AbstractContextManager[Working]:
    return started(directory, "work", *arguments, "--group", "billing")


@contextmanager
def started(directory: Path, *arguments: str) -> Iterator[Working]:
    process = subprocess.Popen(
        [KLAMM, *arguments],
        cwd=directory,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        yield Working(process, directory)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def worked(directory: Path, *arguments: str) -> tuple[int, str, str]:
    """Run it to its end: its exit code, stdout and stderr."""
    with working(directory, *arguments) as work:
        return work.ended()


def lag(directory: Path) -> int:
    with klamm.open(directory / "events") as store:
        return sum(each.lag or 0 for each in store.groups.describe("billing").offsets)


def text_of(err: str) -> list[str]:
    """The events of a log in text, without their times."""
    return [re.sub(r"^\S+Z ", "", line) for line in err.splitlines()]


def test_the_command_of_the_guide_works(app: Path) -> None:
    page = (ROOT / "docs" / "guide" / "workers-and-dead-letters.md").read_text()
    [command] = re.findall(r"^klamm (work .*)$", page, re.MULTILINE)
    with started(app, *command.split()) as work:
        work.handled(10)
        work.process.send_signal(signal.SIGTERM)
        code, _, err = work.ended()
    assert code == 0 and lag(app) == 0
    [shown] = re.findall(r"```text\n(\d{4}.*?)```", page, re.DOTALL)
    forms = {re.sub(r"=\S+", "=", line) for line in text_of(shown)}
    assert {re.sub(r"=\S+", "=", line) for line in text_of(err) if "charging" not in line} <= forms


# ---- how it ends


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("handler", ["app:slowly", "app:notify"])
def test_a_signal_ends_it_well_and_what_is_done_is_committed(app: Path, number: int, handler: str) -> None:
    with working(app, handler, "orders", "--workers", "10") as work:
        work.handled(10)
        work.process.send_signal(number)
        code, out, err = work.ended()
    assert code == 0, err
    assert json.loads(out) == {"done": 10, "failed": 0, "dead_lettered": 0, "timed_out": 0, "lost": 0}
    assert lag(app) == 0
    events = text_of(err)
    assert events[0] == (
        f"INFO    working handler={handler} topics=orders group=billing workers=10 store={app / 'events'}"
    )
    assert f"INFO    {signal.Signals(number).name}: handlers that run have 30 s to end" in events
    assert events[-1] == "INFO    stopped done=10 failed=0 dead_lettered=0 timed_out=0 lost=0"


def test_a_second_signal_ends_it_at_once(app: Path) -> None:
    with working(app, "app:hold", "orders") as work:
        work.handled(1)
        until(lambda: work.process.poll() is not None or work.process.send_signal(signal.SIGTERM), "it ends")
        assert work.ended()[0] in (128 + signal.SIGTERM, -signal.SIGTERM)  # a third one may come before it has ended


def test_a_handler_that_hangs_holds_up_the_end_for_grace_only(app: Path) -> None:
    with working(app, "app:hold", "orders", "--grace", "200ms", "--workers", "1") as work:
        work.handled(1)
        work.process.send_signal(signal.SIGTERM)
        code, out, err = work.ended()
    assert code == 0 and json.loads(out)["done"] == 0
    assert "the handler has not ended within 0.2 s" in err


def test_processes_are_ended_by_a_signal_to_all_of_them(app: Path) -> None:
    with working(app, "app:slowly", "orders", "--processes", "--workers", "2") as work:
        work.handled(2)
        os.killpg(work.process.pid, signal.SIGTERM)
        code, out, err = work.ended()
    assert code == 0 and "Traceback" not in err, err
    assert json.loads(out)["done"] >= 2 and json.loads(out)["failed"] == 0


def test_with_wait_it_ends_when_all_is_done(app: Path) -> None:
    code, out, err = worked(app, "app:charge", "orders", "--wait", "0s")
    assert code == 0, err
    assert json.loads(out)["done"] == 10 and lag(app) == 0
    assert "INFO    charging b'3' logger=app" in " ".join(text_of(err)).replace('"', "")


def test_an_offset_that_is_gone_is_an_error_unless_it_says_where_to_go_on(app: Path) -> None:
    with klamm.open(app / "events") as store:
        store.groups.reset("billing", ["orders"], to=0)
        ends = {part.number: part.end for part in store.topics.describe("orders").partitions}
        store["orders"].delete_records(dict.fromkeys(ends, 1))
    code, _, err = worked(app, "app:charge", "orders", "--wait", "0s")
    assert code == 1 and "offset 0 is not in [1, " in err and HINTS["offset_gone"] in err.splitlines()[-1]
    code, out, err = worked(app, "app:charge", "orders", "--wait", "0s", "--auto-offset-reset", "earliest")
    assert code == 0 and json.loads(out)["done"] == 8 and lag(app) == 0, err


def test_a_serde_makes_the_values(app: Path) -> None:
    with klamm.open(app / "events") as store:
        store.topics.create("bills")
        store.append("bills", b'{"total": 3}')
    code, out, err = worked(app, "app:charge_json", "bills", "--wait", "0s", "--serde", "json")
    assert code == 0 and json.loads(out)["done"] == 1, err


# ---- errors of the handler


def test_a_handler_that_fails_ends_it_with_1_and_names_the_record(app: Path) -> None:
    code, out, err = worked(app, "app:refuse", "orders", "--workers", "1")
    assert code == 1 and out == ""
    last = err.splitlines()[-1]
    assert re.fullmatch(
        r"klamm: orders/[01] at offset 0: the handler failed: Busy: come back later"
        r" \(what is done is committed; --on-error dead-letter goes on\)",
        last,
    )
    assert "in refuse" in err  # the log has its traceback


def test_of_two_records_that_fail_at_the_same_time_one_is_named(app: Path) -> None:
    code, _, err = worked(app, "app:refuse_together", "orders", "--workers", "2")
    assert code == 1
    assert re.match(r"klamm: orders/[01] at offset \d: the handler failed: Busy: come", err.splitlines()[-1]), err


def test_retries_and_dead_letters_are_logged_as_json(app: Path) -> None:
    arguments = ["--on-error", "dead-letter", "--retries", "1", "--backoff", "1ms", "--log-format", "json"]
    code, out, err = worked(app, "app:refuse", "orders", "--wait", "0s", *arguments)
    assert code == 0 and json.loads(out) == {
        "done": 0,
        "failed": 20,
        "dead_lettered": 10,
        "timed_out": 0,
        "lost": 0,
    }
    events = [json.loads(line) for line in err.splitlines()]
    failures = [event for event in events if event["event"] == "handler failed"]
    assert [event["level"] for event in failures].count("warning") == 10
    assert failures[0]["reason"] == "Busy: come back later" and failures[0]["retry_in"] == 0.001
    assert sum(event["event"] == "dead letter" for event in events) == 10


@pytest.mark.parametrize(
    ("options", "attempts"),
    [(["--retry-on", "TimeoutError"], 10), (["--retry-on", "app:Busy"], 30), (["--give-up-on", "app:Busy"], 10)],
    ids=str,
)
def test_errors_are_tried_again_by_their_type(app: Path, options: list[str], attempts: int) -> None:
    arguments = ["--on-error", "dead-letter", "--retries", "2", "--backoff", "0s", "--wait", "0s"]
    code, out, err = worked(app, "app:refuse", "orders", *arguments, *options)
    assert code == 0 and json.loads(out)["failed"] == attempts, err


def test_a_timeout_is_an_error_of_its_record(app: Path) -> None:
    arguments = ["--on-error", "dead-letter", "--retries", "0", "--timeout", "200ms", "--workers", "10"]
    code, out, err = worked(app, "app:hold", "orders", "--wait", "0s", *arguments)
    assert code == 0 and json.loads(out)["timed_out"] == 10, err


def test_progress_is_logged(app: Path) -> None:
    code, _, err = worked(app, "app:charge", "orders", "--wait", "0s", "--progress-every", "0s")
    assert code == 0
    assert re.search(r"INFO    progress done=10 failed=0 .* per_second=\d", err)


# ---- what cannot be imported, and wrong options


MODULES = {
    "raises.py": "x = 1\nraise OSError('no network')",
    "imports.py": "import nowhere.at_all",
    "syntax.py": "def f(:",
    "ends.py": "raise SystemExit(3)",
}


@pytest.mark.parametrize(
    ("target", "code", "message"),
    [
        ("nowhere:f", 2, "nowhere: there is no module 'nowhere'"),
        ("app.sub:f", 2, "app.sub: there is no module 'app.sub'"),
        ("app:chrage", 2, "app:chrage: app has no 'chrage' (did you mean 'charge'?)"),
        ("app:Hall.usher", 2, "app:Hall.usher: app has no 'usher'"),
        ("app:number", 2, "app:number: not a function but int"),
        ("app", 2, "app: does not name a function"),
        ("raises:f", 1, "raises: cannot be imported: OSError: no network, "),
        ("imports:f", 1, "imports: cannot be imported: ModuleNotFoundError: No module named 'nowhere', "),
        ("syntax:f", 1, "syntax: cannot be imported: SyntaxError: "),
        ("ends:f", 1, "ends: cannot be imported: SystemExit: 3, "),
    ],
)
def test_a_handler_that_cannot_be_loaded_is_named(app: Path, target: str, code: int, message: str) -> None:
    for name, text in MODULES.items():
        (app / name).write_text(text)
    ended, out, err = worked(app, target, "orders")
    assert (ended, out) == (code, "") and err.count("\n") == 1
    assert err.startswith(f"klamm: {message}"), err
    if code == 1:
        assert re.search(r"\.py:\d", err)


WRONG = [
    (["--on-error", "ignore"], "on_error"),
    (["--order", "none"], "order"),
    (["--timeout", "soon"], "--timeout: 'soon' is invalid (expected a duration: 500ms, 90s, 15m, 2h)"),
    (["--timeout", "0"], "timeout: 0 is invalid"),
    (["--log-format", "xml"], "--log-format"),
    (["--log-level", "loud"], "--log-level"),
    (["--retry-on", "Busy", "--on-error", "retry"], "--retry-on Busy: not a type of exceptions"),
    (["--dead-letter-topic", "x"], "dead_letter_topic"),
    (["--workers", "0"], "workers"),
    (["--serde", "xml"], "serde"),
]


@pytest.mark.parametrize(("options", "message"), WRONG, ids=str)
def test_a_wrong_option_ends_it_with_2(app: Path, options: list[str], message: str) -> None:
    code, out, err = worked(app, "app:charge", "orders", *options)
    assert (code, out) == (2, "") and message in err.splitlines()[-1]


def test_it_needs_a_group_and_topics_that_are_there(app: Path, cli: Cli) -> None:
    assert "--group" in cli("work", "app:charge", "orders", code=2).err
    assert "TOPIC" in cli("work", "app:charge", "-g", "billing", code=2).err
    code, _, err = worked(app, "app:charge", "nothere", "--wait", "0s")
    assert code == 1 and "nothere" in err.splitlines()[-1]


def test_a_damaged_store_ends_it_with_3(app: Path) -> None:
    for log in (app / "events").rglob("*.log"):
        data = bytearray(log.read_bytes())
        if data:
            data[70] ^= 1
            log.write_bytes(data)
    code, _, err = worked(app, "app:charge", "orders", "--wait", "0s")
    assert code == 3, err
