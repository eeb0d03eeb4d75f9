"""`klamm tail`: from where, which records, how they look, and where a group goes on."""

from __future__ import annotations

import signal
import subprocess
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest

import klamm
from klamm.batch import Record
from klamm.cli.records import Filter, Format, parse_time
from klamm.errors import InvalidSetting
from tests.cli.conftest import Cli
from tests.procs import PATIENCE, until
from tests.serving import KLAMM

T0 = 1_700_000_000_000


@pytest.fixture
def orders(store: klamm.Store) -> klamm.Store:
    """Twenty records in one partition, a second apart."""
    store.create_topic("orders")
    store.append_many("orders", [(b"k%d" % (n % 3), b"%d" % n, [("n", b"%d" % n)], T0 + n * 1000) for n in range(20)])
    return store


def values(cli: Cli, *arguments: object) -> list[int]:
    return [int(row["value"]) for row in cli("tail", "orders", *arguments).rows]


# From where


def test_the_last_ten_unless_told_otherwise(cli: Cli, orders: klamm.Store) -> None:
    assert values(cli) == [*range(10, 20)]
    assert values(cli, "-n", 3) == [17, 18, 19]
    assert values(cli, "-n", 0) == []
    assert values(cli, "-n", 99) == [*range(20)]


def test_from_an_offset_on(cli: Cli, orders: klamm.Store) -> None:
    assert values(cli, "--offset", 15) == [15, 16, 17, 18, 19]
    assert values(cli, "--offset", 20) == []
    assert "offset 21 is not in [0, 20)" in cli("tail", "orders", "--offset", 21, code=1).err


def test_an_offset_that_not_every_partition_has(cli: Cli, store: klamm.Store) -> None:
    store.create_topic("orders", 2)
    store.append_many("orders", [b"%d" % n for n in range(5)], partition=0)
    store.append_many("orders", [b"10", b"11"], partition=1)
    assert values(cli, "--offset", 4) == [4]
    assert sorted(values(cli, "--offset", 1)) == [1, 2, 3, 4, 11]


def test_since_starts_at_the_first_record_at_or_after_a_time(cli: Cli, orders: klamm.Store) -> None:
    assert values(cli, "--since", T0 + 18_000) == [18, 19]
    at = datetime.fromtimestamp((T0 + 17_000) / 1000, UTC)
    assert values(cli, "--since", at.isoformat()) == [17, 18, 19]
    assert values(cli, "--since", at.astimezone(timezone(timedelta(hours=5, minutes=30))).isoformat()) == [17, 18, 19]
    assert values(cli, "--since", "1h") == []
    orders.append("orders", b"20")
    assert values(cli, "--since", "1h") == [20]


def test_a_group_goes_on_behind_what_was_printed(cli: Cli, orders: klamm.Store) -> None:
    assert values(cli, "--group", "g", "-c", 3) == [0, 1, 2]
    assert values(cli, "--group", "g", "-c", 2) == [3, 4]
    assert orders.group("g").lag == 15
    assert values(cli, "--group", "g") == [*range(5, 20)]
    assert values(cli, "--group", "g") == []
    orders.append("orders", b"20")
    assert values(cli, "--group", "g", "--key", "nobody") == []  # seen, if not shown
    assert orders.group("g").lag == 0


@pytest.mark.parametrize("options", [[], ["-c", "3"]])
def test_a_group_does_not_move_past_what_could_not_be_printed(
    home: Path, orders: klamm.Store, options: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    with open("/dev/full", "wb") as full:  # takes what a buffer holds, and refuses it when it is flushed
        done = subprocess.run(
            [KLAMM, "tail", "orders", "--group", "g", *options], stdout=full, stderr=subprocess.PIPE, timeout=PATIENCE
        )
    assert done.returncode == 1 and done.stderr == b"klamm: No space left on device\n"
    assert not any(offset.committed for offset in orders.group("g").offsets)


def test_tail_prints_only_the_partitions_that_are_asked_for(cli: Cli, store: klamm.Store) -> None:
    store.create_topic("orders", 3)
    for number in range(3):
        store.append("orders", b"%d" % number, partition=number, timestamp=T0 + number)
    assert values(cli, "-p", 1) == [1]
    assert values(cli, "--partition", 2, "-p", 0) == [0, 2]
    assert values(cli, "-p", 2, "--offset", 0) == [2]
    assert "orders: there is no partition 3 (it has 0 to 2)" in cli("tail", "orders", "-p", 3, code=1).err


def test_ways_to_say_where_to_start_exclude_each_other(cli: Cli, orders: klamm.Store) -> None:
    assert "give one of them" in cli("tail", "orders", "-n", 1, "--offset", 2, code=2).err
    assert "--group and --partition" in cli("tail", "orders", "--group", "g", "-p", 0, code=2).err
    assert "'yesterday' is no time (want 15m" in cli("tail", "orders", "--since", "yesterday", code=2).err


def test_an_empty_topic_and_one_that_is_not_there(cli: Cli, store: klamm.Store) -> None:
    store.create_topic("orders", 2)
    for options in ([], ["--offset", 0], ["--since", "1h"], ["--group", "g"], ["--key", "k"]):
        assert cli("tail", "orders", *options).out == b""
    assert "did you mean 'orders'?" in cli("tail", "order", code=1).err


def test_it_ends_where_the_topic_ended_when_it_began(
    cli: Cli, orders: klamm.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = []

    def fill(self: Format, record: Record) -> bytes:
        shown.append(record.offset)
        orders.append("orders", b"more", acks=1)  # quicker than we are, for ever
        return b""

    monkeypatch.setattr(Format, "fill", fill)
    cli("tail", "orders", "--offset", 0, "%v")
    assert shown == [*range(20)]


# Which


def test_filters_by_key_value_header_and_json(cli: Cli, store: klamm.Store) -> None:
    store.create_topic("orders")
    rows = [
        (b"a", b'{"n": 1, "user": {"id": 42, "tags": ["x", "y"]}}', [("source", b"web")]),
        (b"b", b'{"n": 2, "user": {"id": 7}}', [("source", b"app")]),
        (b"a", b'{"n": 3, "user": {"id": "42"}}', [("source", b"web"), ("beta", b"1")]),
        (b"a", b"no JSON: 42", []),
        (b"b", None, []),
    ]
    store.append_many("orders", rows)

    def found(*arguments: object) -> list[int]:
        return [row["offset"] for row in cli("tail", "orders", *arguments).rows]

    assert found("--key", "a") == [0, 2, 3]
    assert found("--grep", "4[2]") == [0, 2, 3]
    assert found("--header", "source=web") == [0, 2]
    assert found("-H", "source=web", "-H", "beta=1") == [2]
    assert found("--where", "$.user.id = 42") == [0]
    assert found("--where", '$.user.id = "42"') == [2]
    assert found("--where", "$.n >= 2") == [1, 2]
    assert found("--where", "$.n != 2") == [0, 2]
    assert found("--where", "$.n < 3", "--where", "$.n > 1") == [1]
    assert found("--where", "$.n <= 1") == [0]
    assert found("--where", "$.user.tags[1] = y") == [0]
    assert found("--where", "$.user.tags") == [0]
    assert found("--key", "a", "-n", 1) == [3]
    assert found("--key", "a", "-c", 1, "--offset", 1) == [2]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--where", "user.id = 1"], "want '$.user.id = 42'"),
        (["--where", "$..x = 1"], "is no path into JSON"),
        (["--grep", "("], "is no regular expression"),
        (["-H", "source"], "want --header name=value"),
        (["%q"], "format: %q means nothing (there are %t"),
        (["a\\"], "means nothing"),
        (["100%"], "means nothing"),
    ],
)
def test_what_cannot_be_a_filter_or_a_format_is_refused(
    cli: Cli, orders: klamm.Store, arguments: list[str], complaint: str
) -> None:
    assert complaint in cli("tail", "orders", *arguments, code=2).err


def test_the_last_that_are_wanted_are_found_however_far_back(cli: Cli, store: klamm.Store) -> None:
    store.create_topic("orders", 2)
    rare = {3: b"rare", 4_000: b"rare", 29_000: b"rare"}
    store.append_many("orders", [(rare.get(n, b"usual"), b"%d" % n) for n in range(30_000)], partition=1)
    store.append_many("orders", [(b"usual", b"")] * 10, partition=0)
    assert values(cli, "--key", "rare") == [3, 4_000, 29_000]
    assert values(cli, "--key", "rare", "-n", 2) == [4_000, 29_000]
    assert values(cli, "--key", "nowhere") == []


# How they look


def test_in_a_pipe_a_record_is_a_line_of_json(cli: Cli, store: klamm.Store) -> None:
    store.create_topic("my.topic-1")
    store.append("my.topic-1", "grüße\n".encode(), key=b"\xff\x00", headers=[("h", b"\xfe"), ("n", None)], timestamp=T0)
    store.append("my.topic-1", None, key=b"", timestamp=T0 + 1)
    one, other = cli("tail", "my.topic-1").rows
    assert one == {
        "topic": "my.topic-1",
        "partition": 0,
        "offset": 0,
        "timestamp": T0,
        "key": {"base64": "/wA="},
        "value": "grüße\n",
        "headers": [["h", {"base64": "/g=="}], ["n", None]],
    }
    assert other["key"] == "" and other["value"] is None


def test_a_format_is_filled_with_bytes_as_they_are(cli: Cli, store: klamm.Store) -> None:
    store.create_topic("orders", 2)
    store.append("orders", b"\xff\x00v", key=b"k", partition=1, headers=[("a", b"1"), ("b", b"\xfe")], timestamp=T0)
    form = r"%t|%p|%o|%T|%M|%k|%v|%s|%h|%K|%S|%%\t\r\0\\\n"
    want = b"orders|1|0|2023-11-14T22:13:20.000Z|1700000000000|k|\xff\x00v|\xff\x00v|a=1,b=\xfe|1|3|%\t\r\0\\\n"
    assert cli("tail", "orders", form).out == want
    store.append("orders", None, partition=0)
    assert cli("tail", "orders", "-p", 0, "%k,%v,%K,%S").out == b",,-1,-1"


def test_on_a_terminal_control_characters_are_shown_not_sent() -> None:
    record = Record("t", 0, 0, T0, b"\x1b[31mred", b"a\x07\xff\tb\n", (), 0)
    assert Format("%k %v", raw=False).fill(record) == b"\\x1b[31mred a\\x07\\xff\tb\n"


def test_a_key_that_is_no_text_can_be_asked_for(home: Path, store: klamm.Store) -> None:
    store.create_topic("orders")
    store.append_many("orders", [(b"\xff", b"1"), (b"x", b"2")])
    done = subprocess.run([KLAMM, "tail", "orders", "--key", b"\xff", "%v"], capture_output=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, b"1")


# Times


def test_times_as_people_write_them() -> None:
    now = datetime.now(UTC)
    assert abs(now - timedelta(minutes=15) - parse_time("15m", "x")) < timedelta(seconds=5)
    assert abs(now - timedelta(hours=1.5) - parse_time("1.5h", "x")) < timedelta(seconds=5)
    assert abs(now - timedelta(weeks=2) - parse_time(" 2 w ", "x")) < timedelta(seconds=5)
    assert parse_time("1700000000000", "x") == datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)
    assert parse_time("2026-11-15T10:00Z", "x") == datetime(2026, 11, 15, 10, tzinfo=UTC)
    assert parse_time("2026-11-15T10:00+02:00", "x") == datetime(2026, 11, 15, 8, tzinfo=UTC)
    assert parse_time("2026-11-15", "x") == datetime(2026, 11, 15).astimezone()  # of this machine
    for wrong in ("", "soon", "15", "99999999999999d", "2026-13-01", "-1h"):
        with pytest.raises(InvalidSetting):
            parse_time(wrong, "--since")


def test_what_is_wanted_can_be_everything() -> None:
    assert Filter().takes_all and not Filter(key="").takes_all


# Following


@pytest.mark.parametrize("options", [["-n", "1"], ["--offset", "19"], ["--group", "g"], ["--key", "k1", "-n", "1"]])
def test_following_shows_what_comes_and_ctrl_c_ends_it_well(
    home: Path, orders: klamm.Store, tmp_path: Path, options: list[str]
) -> None:
    out = tmp_path / "out"
    with out.open("wb") as file:
        child = subprocess.Popen(
            [KLAMM, "tail", "orders", "-f", r"%v\n", *options], stdout=file, stderr=subprocess.PIPE
        )
    assert child.stderr is not None
    try:
        until(lambda: b"19\n" in out.read_bytes(), "what is there is printed")
        orders.append("orders", b"new", key=b"k1")
        until(lambda: b"new\n" in out.read_bytes(), "what comes is printed")
        child.send_signal(signal.SIGINT)
        assert child.stderr.read() == b""
        assert child.wait(PATIENCE) == 0
    finally:
        child.kill()
        child.wait()
        child.stderr.close()
    if "--group" in options:
        assert orders.group("g").lag == 0


def test_following_ends_after_so_many(cli: Cli, orders: klamm.Store) -> None:
    assert values(cli, "-f", "--count", 4, "-n", 5) == [15, 16, 17, 18]
