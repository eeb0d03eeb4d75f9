"""The examples run, and say what they should."""

from __future__ import annotations

import ast
import importlib
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

import klamm
from tests.procs import until

EXAMPLES = Path(__file__).parent.parent / "examples"
SHOWS = {"live.py", "tour.py"}  # `make run` and `make tour`: they need no directory
PUBLIC = {"klamm", "klamm.aio", "klamm.spark", "klamm.spark.pipelines", "klamm.testing"}


def run(name: str, *arguments: str | Path) -> list[str]:
    done = subprocess.run(
        [sys.executable, EXAMPLES / name, *arguments], capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize("path", sorted(EXAMPLES.rglob("*.py")), ids=lambda path: str(path.relative_to(EXAMPLES)))
def test_an_example_imports_only_what_is_public(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("klamm"):
            modules = [str(node.module)]
            public = importlib.import_module(str(node.module)).__all__
            assert [alias.name for alias in node.names if alias.name not in public] == []
        assert {name for name in modules if name.startswith("klamm")} <= PUBLIC


@pytest.mark.parametrize("name", sorted(path.name for path in EXAMPLES.glob("*.py") if path.name not in SHOWS))
def test_without_a_directory_an_example_says_how_it_is_called(name: str) -> None:
    done = subprocess.run([sys.executable, EXAMPLES / name], capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 1 and f"python examples/{name} events/" in done.stderr
    assert "Traceback" not in done.stderr


def test_reading_again_gives_the_same(tmp_path: Path) -> None:
    _, first, second = run("read_again.py", tmp_path / "events")
    assert "the sum of all n is 4,999,950,000" in first and "the sum of all n is 4,999,950,000" in second


def test_only_what_is_new_is_read(tmp_path: Path) -> None:
    assert run("only_what_is_new.py", tmp_path) == [
        "reader: new: message 0, message 1, message 2, message 3, message 4"
    ]
    assert run("only_what_is_new.py", tmp_path) == [
        "reader: new: message 5, message 6, message 7, message 8, message 9"
    ]
    (other,) = run("only_what_is_new.py", tmp_path, "other")
    assert other.startswith("other: new: message 0,") and other.endswith("message 14")


def test_workers_keep_the_order_of_a_key(tmp_path: Path) -> None:
    paid, letters = run("one_reader_many_workers.py", tmp_path)
    assert paid.startswith("980 paid by") and paid.endswith("in order within each account: True")
    assert letters == "20 dead letters: ValueError: 13 cannot be paid"


def test_totals_are_right_though_a_process_is_killed(tmp_path: Path) -> None:
    totals, alarms = run("running_totals.py", tmp_path)
    assert totals == "3,920 invoices of 4,000 orders; 10 totals: {9800}"
    assert alarms == "alarms: 1830"


def test_a_compacted_topic_is_a_view_of_latest_values(tmp_path: Path) -> None:
    pytest.importorskip("rocksdict")
    first, second, compacted, same = run("latest_value.py", tmp_path)
    assert first == "49 sensors; sensor-07 reports 21.99 °C" and second == "sensor-49 is there: False"
    assert compacted.startswith("compacted: 9,95") and same == "the table is the same: 21.99 °C"


def test_three_services_read_the_same(tmp_path: Path) -> None:
    said = run("fan_out.py", tmp_path)
    killed = next(int(line.split()[-1]) for line in said if line.startswith("billing: killed after"))
    assert f"billing: handled {3000 - killed} orders" in said
    assert "shipping: handled 3000 orders" in said and "statistics: handled 3000 orders" in said
    assert said[-3:] == ["billing is 0 behind", "shipping is 0 behind", "statistics is 0 behind"]


def test_make_run_without_a_terminal_shows_itself_and_ends(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, EXAMPLES / "live.py", tmp_path / "events"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "The console     http://127.0.0.1:" in done.stdout and "Kafka clients   127.0.0.1:" in done.stdout
    assert f"/ shows 'Overview · {tmp_path / 'events'} · Klamm'" in done.stdout
    with klamm.open(tmp_path / "events", create=False) as store:
        assert store["orders"].info().count > 0 and {"billing", "mails", "shipping"} <= set(store.groups)
        assert [lock for lock in store.who() if lock.pid != os.getpid()] == []


def processes_of(path: Path) -> list[str]:
    """Return the command lines, with this path in them, of processes."""
    lines = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # it has ended by now
            lines.append(file.read_bytes().replace(b"\0", b" ").decode())
    return [line for line in lines if str(path) in line]


@pytest.mark.parametrize(("number", "is_early"), [(signal.SIGINT, True), (signal.SIGHUP, False)])
def test_make_run_leaves_no_process_behind(tmp_path: Path, number: int, is_early: bool) -> None:
    """Ctrl-C while the server starts, and the end of the terminal while all of it runs."""
    ours = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # under nohup it is ignored, and would be by the example, too
    master, terminal = os.openpty()
    live = subprocess.Popen(
        [sys.executable, EXAMPLES / "live.py", tmp_path / "events"],
        stdin=terminal,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert live.stdout is not None
        if is_early:
            until(lambda: [line for line in processes_of(tmp_path) if " serve " in line], "the server is started")
        else:
            lines = list(iter(live.stdout.readline, "  Ctrl-C ends it.\n"))
            assert any("The console" in line for line in lines), lines
        live.send_signal(number)
        out, err = live.communicate(timeout=60)
        assert (live.returncode, err) == (0, "") and "orders; ended in" in out
        until(lambda: not processes_of(tmp_path), "no process is left")
        with klamm.open(tmp_path / "events", create=False) as store:
            assert [lock for lock in store.who() if lock.pid != os.getpid()] == []
    finally:
        if live.poll() is None:
            live.terminate()
            live.communicate()
        signal.signal(signal.SIGHUP, ours)
        os.close(master)
        os.close(terminal)


def test_make_run_says_why_the_server_does_not_start(tmp_path: Path) -> None:
    (tmp_path / "serve.toml").write_text("[serve]\nnonsense = 1\n")
    done = subprocess.run(
        [sys.executable, EXAMPLES / "live.py", tmp_path / "events"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=100,
        env={**os.environ, "KLAMM_CONFIG": str(tmp_path / "serve.toml")},
    )
    assert done.returncode == 1 and "nonsense" in done.stderr and "ended with exit code 2" in done.stderr
    until(lambda: not processes_of(tmp_path), "no process is left")


@pytest.mark.soak
@pytest.mark.timeout(400)
def test_make_run_plays_life_where_spark_is_and_ends_it_in_the_middle(tmp_path: Path) -> None:
    master, terminal = os.openpty()
    live = subprocess.Popen(
        [sys.executable, EXAMPLES / "live.py", tmp_path / "events"], stdin=terminal, stdout=subprocess.PIPE, text=True
    )
    try:
        assert live.stdout is not None
        assert any("/life, once Spark is up" in line for line in iter(live.stdout.readline, "  Ctrl-C ends it.\n"))
        with klamm.open(tmp_path / "events", create=False) as store:
            until(lambda: "life" in store.topics, "Spark is up", 300)
            until(lambda: store["life"].info().count > 20_000, "life is played", 300)
            live.send_signal(signal.SIGINT)
            assert "orders; ended in" in live.communicate(timeout=60)[0] and live.returncode == 0
            until(lambda: {lock.pid for lock in store.who()} == {os.getpid()}, "no process has it open")
    finally:
        if live.poll() is None:
            live.terminate()
            live.communicate()
        os.close(master)
        os.close(terminal)


def test_every_example_is_run_here_or_by_make_run() -> None:
    told = Path(__file__).read_text()
    assert [
        each.name for each in EXAMPLES.glob("*.py") if each.name not in SHOWS and f'"{each.name}"' not in told
    ] == []
