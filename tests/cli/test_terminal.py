"""What a person at a terminal sees: tables, colours, progress, questions, and what Ctrl-C does."""

from __future__ import annotations

import contextlib
import io
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import klamm
from klamm.cli import output
from klamm.cli.main import run
from tests.cli.terminal import Terminal, terminal

T0 = 1_700_000_000_000

pytestmark = pytest.mark.skipif(shutil.which("tmux") is None, reason="there is no tmux: `make tools` installs it")


@pytest.fixture
def screen(home: Path) -> Iterator[Terminal]:
    with terminal(KLAMM_STORE=str(home)) as opened:
        yield opened


@pytest.fixture
def orders(store: klamm.Store) -> klamm.Store:
    store.topics.create("orders", 2, {"retention.ms": 3_600_000_000})
    store.append_many("orders", [(b"user-%d" % n, b"value-%d" % n, [], T0 + n) for n in range(12)], partition=0)
    return store


def test_tail_follows_and_ctrl_c_ends_it_with_0(screen: Terminal, orders: klamm.Store) -> None:
    screen.start("klamm tail orders -n 2 -f")
    shown = screen.shows("value-11")
    assert "value-10" in shown and "value-9" not in shown
    orders.append("orders", b"brand new", key=b"k")
    screen.shows("brand new")
    screen.press("C-c")
    ended = screen.ended()
    assert screen.code() == 0
    assert "Traceback" not in ended and "interrupted" not in ended and "Abort" not in ended


def test_records_have_colours_and_control_characters_do_nothing(screen: Terminal, orders: klamm.Store) -> None:
    orders.append("orders", b"\x1b[2Jgone? [bold]no[/bold]", key=b"evil")
    screen.run("klamm tail orders -n 1")
    assert r"evil  \x1b[2Jgone? [bold]no[/bold]" in screen.screen
    assert "\x1b[36mevil" in screen.painted  # cyan
    screen.run("NO_COLOR=1 klamm tail orders -n 1")
    assert "\x1b[36m" not in screen.painted
    screen.run("NO_COLOR=1 klamm cheat")
    assert "\x1b[2m" not in screen.painted
    screen.run("klamm tail orders -n 1 | cat")
    assert "\x1b[36m" not in screen.painted and '"key": "evil"' in screen.screen.replace("\n", "")


def test_a_table_has_colours_and_fits_into_80_columns(screen: Terminal, orders: klamm.Store) -> None:
    orders.topics.create("a-topic.with-a-name-that-is-longer-than-people-like", 1, {"cleanup.policy": "compact"})
    listed = screen.run("klamm topic list").splitlines()
    head = next(line for line in listed if "partitions" in line)
    assert head.split() == ["topic", "partitions", "offsets", "size", "settings"]
    row = next(line for line in listed if line.strip().startswith("orders"))
    assert row.split()[1:4] == ["2", "12", row.split()[3]] and "retention.ms=" in row
    assert re.search(r"\x1b\[1m.*\x1b\[36m.*topic", screen.painted)
    shown = screen.run("klamm topic show orders")
    assert re.search(r"^topic +orders$", shown, re.MULTILINE) and re.search(r"^ +0 +0 +12 ", shown, re.MULTILINE)


def test_a_row_that_is_too_wide_for_a_table_is_a_list(screen: Terminal, orders: klamm.Store) -> None:
    shown = screen.run("klamm sql 'select * from orders limit 1'")
    assert re.search(r"^key +user-0$", shown, re.MULTILINE)
    assert re.search(r"^timestamp +2023-11-14T22:13:20\+00:00$", shown, re.MULTILINE)
    shown = screen.run("klamm sql 'select text(key) as who, \"offset\" as n from orders where n < 2 order by n'")
    assert re.search(r"^ who +n\s*$", shown, re.MULTILINE) and re.search(r"^ user-1 +1\s*$", shown, re.MULTILINE)
    assert "no rows" in screen.run("klamm sql 'select 1 where false'")
    assert "a_b" in screen.run("klamm sql 'select 1 as a_b'")
    assert "no records" in screen.run("klamm tail orders --since 2099-01-01")


def test_only_so_many_rows_come_to_a_terminal_and_it_says_so(screen: Terminal, orders: klamm.Store) -> None:
    shown = screen.run("klamm sql 'select range as n from range(300)'")
    assert "199" in shown and "200 rows are shown on a terminal" in shown and "250" not in shown


def test_a_destructive_verb_asks_and_no_means_no(screen: Terminal, orders: klamm.Store) -> None:
    screen.start("klamm topic delete orders")
    shown = screen.shows("Do it?")
    assert "The topic orders would be deleted, for good: 12 offsets" in shown
    screen.type("n")
    assert screen.code() == 1 and list(orders.topics) == ["orders"]
    screen.start("klamm topic delete orders")
    screen.shows("Do it?")
    screen.press("C-c")
    assert screen.code() == 1 and list(orders.topics) == ["orders"]
    screen.start("klamm topic delete orders")
    screen.shows("Do it?")
    screen.type("y")
    assert screen.code() == 0 and list(orders.topics) == []


def test_a_group_is_reset_after_its_plan_was_seen(screen: Terminal, orders: klamm.Store) -> None:
    orders.groups.reset("billing", {"orders": [0]}, to=3)
    screen.start("klamm group reset billing --to latest")
    assert "orders/0: 3 → 12" in screen.shows("Do it?")
    screen.type("y")
    shown = screen.ended()
    assert re.search(r"^ orders +0 +3 +12\s*$", shown, re.MULTILINE)
    assert orders.groups.describe("billing").lag == 0


def test_a_prompt_of_sql(screen: Terminal, orders: klamm.Store) -> None:
    screen.start("klamm sql")
    screen.shows("Topics: orders. A query ends with a semicolon")
    screen.type("select count(*) as many")
    screen.shows("…")
    screen.type("from orders;")
    screen.shows("many")
    screen.shows("12")
    screen.type("select nonsense;")
    screen.shows("Binder Error")
    screen.until(lambda shown: shown.rstrip().endswith("sql>"), "a prompt")
    screen.type("select 'half a query")
    screen.until(lambda shown: shown.rstrip().endswith("…"), "a prompt for the rest")
    screen.press("C-c")
    screen.until(lambda shown: shown.rstrip().endswith("sql>"), "a fresh prompt")
    screen.type("select sum(a.range * b.range) from range(10000000) a, range(10000000) b;")
    screen.shows("range(10000000) b;")  # else the prompt that is there would be taken for the next one
    screen.press("C-c")
    screen.until(lambda shown: shown.rstrip().endswith("sql>"), "a prompt after a query that would last for hours")
    orders.topics.create("made-meanwhile")
    screen.type('select 6 * 7 as answer; select count(*) as none from "made-meanwhile";')
    assert "42" in screen.until(lambda shown: re.search(r"none\s.*\s0\s.*sql>\s*$", shown, re.DOTALL), "both answers")
    screen.press("C-d")
    assert screen.code() == 0


def test_lines_typed_at_a_terminal_are_sent(screen: Terminal, orders: klamm.Store) -> None:
    screen.start("klamm send orders -p 1")
    screen.shows("a record a line; Ctrl-D ends")
    screen.type("typed")
    screen.press("C-d")
    assert "1 record to orders" in screen.ended()
    with orders.consumer("orders", partitions=[1], form="values", wait=0) as consumer:
        assert list(consumer) == [b"typed"]


def test_ctrl_c_amid_sending_tells_how_many_were_sent(screen: Terminal, orders: klamm.Store) -> None:
    screen.start("klamm send orders -p 1")
    screen.shows("a record a line; Ctrl-D ends")
    screen.type("one")
    screen.type("two")
    screen.until(lambda _: orders.topics.describe("orders").partitions[1].end == 2, "both are there")
    screen.press("C-c")
    assert "klamm: interrupted (2 records before it were sent)" in screen.ended()
    assert screen.code() == 1


def test_an_export_that_takes_long_shows_a_bar_with_rate_and_time_left(
    screen: Terminal, orders: klamm.Store, tmp_path: Path
) -> None:
    orders.append_many("orders", [(b"k", b"x" * 100)] * 100_000, acks=1, partition=0)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    screen.start(f"klamm export orders > {pipe}")
    with pipe.open("rb", buffering=0) as reader:  # as slow as we read, it writes
        bar = re.compile(r"exporting \S+ +\d+ % [\d,]+ records/s \d+:\d\d:\d\d left")
        shown = screen.until(lambda shown: bar.search(shown) or not reader.read(1 << 16), "a bar")
        assert bar.search(shown)
        while reader.read(1 << 20):
            pass
    ended = screen.ended()
    assert screen.code() == 0 and "exporting" not in ended  # it is gone when it is over


def test_ctrl_c_amid_an_import_from_a_pipe_ends_it_with_one_line(
    screen: Terminal, orders: klamm.Store, tmp_path: Path
) -> None:
    pipe = tmp_path / "lines"
    os.mkfifo(pipe)
    screen.start(f"klamm import orders {pipe} --format jsonl")
    with pipe.open("wb", buffering=0) as writer:
        writer.write(b'{"value": "one"}\n')
        screen.press("C-c")
        ended = screen.ended()
    assert screen.code() == 1
    assert "klamm: interrupted" in ended and "Traceback" not in ended


def test_bench_shows_live_rates_and_a_table_and_ctrl_c_leaves_nothing(screen: Terminal, home: Path) -> None:
    screen.start(f"klamm bench {home} --seconds 60 -n 1000000000 --size 8")
    screen.until(lambda shown: re.search(r"\d s +\d+%  in +[\d,]+/s  out +[\d,]+/s", shown), "live rates")
    screen.press("C-c")
    ended = screen.ended()
    assert screen.code() == 1
    assert "Traceback" not in ended and "klamm: interrupted" in ended
    assert not home.exists()


# Without a terminal of one's own: bars of what cannot be slowed down


class _Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        (["check"], "checking"),
        (["upgrade"], "upgrading"),
        (["backup", "copy"], "copying"),
        (["compact", "--force"], "compacting"),
        (["export", "users", "--to", "users.parquet"], "exporting"),
        (["import", "users", "in.jsonl"], "importing"),
        (["tail", "users", "--key", "nobody"], "searching"),
        (["tail", "users", "--since", "1h"], "reading"),
        (["dlq", "redrive", "jobs.dlq", "--yes"], "redriving"),
        (["send", "users", "--json"], "sending"),
        (["sql", "select count(*) from users"], "reading"),
        (["export", "--sql", "select * from users", "--to", "users.csv"], "exporting"),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_whatever_may_take_long_has_a_bar(
    home: Path, store: klamm.Store, monkeypatch: pytest.MonkeyPatch, command: list[str], shown: str
) -> None:
    store.topics.create("users", 1, {"cleanup.policy": "compact"})
    store.append_many("users", [(b"k%d" % (n % 7), b"v" * 100) for n in range(3000)])
    store.topics.create("jobs")
    store.append_many("jobs", [b"job"] * 5)
    with store.consumer("jobs", group="workers", wait=0) as jobs:
        jobs.run(lambda record: 1 // 0, workers=1, retries=0, on_error="dead-letter")
    Path("in.jsonl").write_text('{"key": "k", "value": "v"}\n' * 2000)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(Path("in.jsonl").read_bytes())))
    monkeypatch.setattr(output, "_TIMEOUT_S", 0)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", err := _Screen())
    assert run(command) == 0
    assert shown in err.getvalue() and "/s" in err.getvalue()


def test_no_bar_where_nobody_looks(home: Path, store: klamm.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "_TIMEOUT_S", 0)
    err = io.StringIO()
    with contextlib.redirect_stderr(err):
        assert run(["check"]) == 0
    assert err.getvalue() == ""


def test_a_bar_gives_way_to_what_is_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "_TIMEOUT_S", 0)
    monkeypatch.setattr(sys, "stdout", _Screen())
    monkeypatch.setattr(sys, "stderr", err := _Screen())
    with output.progress("printing", printing=True) as on_progress:
        on_progress(1, 2)
    assert err.getvalue() == ""


def test_a_pipe_gets_whole_lines_without_colours(home: Path, store: klamm.Store) -> None:
    store.topics.create("orders")
    store.append("orders", b"v" * 5000, key=b"k")
    environment = {**os.environ, "FORCE_COLOR": "1", "COLUMNS": "40"}
    for command in (["tail", "orders"], ["sql", "select text(value) as v from orders"]):
        klamm_at = Path(sys.executable).parent / "klamm"
        done = subprocess.run([klamm_at, *command], capture_output=True, text=True, env=environment, timeout=60)
        assert "v" * 5000 in done.stdout and "\x1b" not in done.stdout and done.stdout.count("\n") == 1
