"""`klamm tail`: from where, which records, how they look, and where a group goes on."""

from __future__ import annotations

import signal
import subprocess
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest

import klamm
from klamm.api.hints import HINTS
from klamm.batch import Record
from klamm.cli.records import Filter, Format
from tests.cli.conftest import Cli
from tests.procs import PATIENCE, until
from tests.serving import KLAMM

T0 = 1_700_000_000_000


@pytest.fixture
def orders(store: klamm.Store) -> klamm.Store:
    """Twenty records in one partition, a second apart."""
    store.topics.create("orders")
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
    assert values(cli, "--from", 15) == [15, 16, 17, 18, 19]
    assert values(cli, "--from", 20) == []
    assert "offset 21 is not in [0, 20)" in cli("tail", "orders", "--from", 21, code=1).err


def test_an_offset_that_not_every_partition_has(cli: Cli, store: klamm.Store) -> None:
    store.topics.create("orders", 2)
    store.append_many("orders", [b"%d" % n for n in range(5)], partition=0)
    store.append_many("orders", [b"10", b"11"], partition=1)
    assert values(cli, "--from", 4) == [4]
    assert sorted(values(cli, "--from", 1)) == [1, 2, 3, 4, 11]


def test_from_a_time_on(cli: Cli, orders: klamm.Store) -> None:
    at = datetime.fromtimestamp((T0 + 17_000) / 1000, UTC)
    assert values(cli, "--from", at.isoformat()) == [17, 18, 19]
    assert values(cli, "--from", at.astimezone(timezone(timedelta(hours=5, minutes=30))).isoformat()) == [17, 18, 19]
    assert values(cli, "--from", "1h") == []
    orders.append("orders", b"20")
    assert values(cli, "--from", "1h") == [20]
    told = cli("tail", "orders", "--from", T0 + 18_000, code=2).err
    assert "may be an offset or a time (write @1700000018000 for the offset, or 2023-11-14T22:13:38.000Z" in told


def test_from_every_other_position_on(cli: Cli, orders: klamm.Store) -> None:
    assert values(cli, "--from", "earliest") == [*range(20)]
    assert values(cli, "--from", "latest") == []
    assert values(cli, "--from", "@15") == [15, 16, 17, 18, 19]
    assert values(cli, "--from", "last 2") == [18, 19]
    assert values(cli, "--from", "0@16") == values(cli, "--from", "orders/0@16:0") == [16, 17, 18, 19]


def test_the_last_of_those_since_a_time(cli: Cli, orders: klamm.Store) -> None:
    for n in range(20, 30):
        orders.append("orders", b"%d" % n, key=b"k%d" % (n % 3))
    assert values(cli, "--since", "1h", "-n", 5) == [25, 26, 27, 28, 29]
    assert values(cli, "-n", 50, "--from", "1h") == [*range(20, 30)]
    assert values(cli, "-n", 2, "--from", "1h", "--key", "k1") == [25, 28]
    assert values(cli, "-n", 5, "--from", "@27") == [27, 28, 29]


def test_a_group_goes_on_behind_what_was_printed(cli: Cli, orders: klamm.Store) -> None:
    assert values(cli, "--group", "g", "-c", 3) == [0, 1, 2]
    assert values(cli, "--group", "g", "-c", 2) == [3, 4]
    assert orders.groups.describe("g").lag == 15
    assert values(cli, "--group", "g") == [*range(5, 20)]
    assert values(cli, "--group", "g") == []
    orders.append("orders", b"20")
    assert values(cli, "--group", "g", "--key", "nobody") == []  # seen, if not shown
    assert orders.groups.describe("g").lag == 0


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
    assert not any(offset.committed for offset in orders.groups.describe("g").offsets)


def test_tail_prints_only_the_partitions_that_are_asked_for(cli: Cli, store: klamm.Store) -> None:
    store.topics.create("orders", 3)
    for number in range(3):
        store.append("orders", b"%d" % number, partition=number, timestamp=T0 + number)
    assert values(cli, "-p", 1) == [1]
    assert values(cli, "--partition", 2, "-p", 0) == [0, 2]
    assert values(cli, "-p", 2, "--from", 0) == [2]
    assert "orders: there is no partition 3 (it has 0 to 2)" in cli("tail", "orders", "-p", 3, code=1).err


@pytest.mark.parametrize("options", [["-n", "1"], ["--from", "2"], ["--since", "1h"], ["-p", "0"]])
def test_a_group_starts_at_its_committed_offsets_and_nowhere_else(
    cli: Cli, orders: klamm.Store, options: list[str]
) -> None:
    assert "--group starts at its committed offsets" in cli("tail", "orders", "--group", "g", *options, code=2).err


def test_a_group_whose_offset_is_missing_goes_on_where_it_is_told(cli: Cli, orders: klamm.Store) -> None:
    orders.groups.reset("g", ["orders"], to=3)
    orders["orders"].delete_records({0: 6})
    assert f"offset 3 is not in [6, 20) ({HINTS['offset_gone']})" in cli("tail", "orders", "--group", "g", code=1).err
    assert values(cli, "--group", "g", "--auto-offset-reset", "latest") == []
    assert values(cli, "--group", "g", "--auto-offset-reset", "earliest") == [*range(6, 20)]
    told = cli("tail", "orders", "--group", "new", "--auto-offset-reset", "error", code=1).err
    assert f"has no offset for orders/0 ({HINTS['no_offset']})" in told
    assert "'newest' is invalid" in cli("tail", "orders", "--group", "g", "--auto-offset-reset", "newest", code=2).err
    told = cli("tail", "orders", "--auto-offset-reset", "latest", code=2).err
    assert "--auto-offset-reset goes with --group (--from says where to start without one)" in told


def test_what_is_no_position_is_refused(cli: Cli, orders: klamm.Store) -> None:
    told = cli("tail", "orders", "--since", "yesterday", code=2).err
    assert "--from: 'yesterday' is invalid (expected 'earliest', 'latest', an offset, a time" in told


def test_an_empty_topic_and_one_that_is_not_there(cli: Cli, store: klamm.Store) -> None:
    store.topics.create("orders", 2)
    for options in ([], ["--from", 0], ["--since", "1h"], ["--group", "g"], ["--key", "k"]):
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
    cli("tail", "orders", "--from", 0, "-o", "%v")
    assert shown == [*range(20)]


# Several topics


@pytest.fixture
def two(store: klamm.Store) -> klamm.Store:
    """Two topics whose records take turns in time; one has two partitions."""
    store.topics.create("orders", 2)
    store.topics.create("users")
    for n in range(12):
        topic, partition = ("users", 0) if n % 3 == 2 else ("orders", n % 3)
        store.append(topic, b"%d" % n, key=b"k", partition=partition, timestamp=T0 + n)
    return store


def test_the_last_of_several_topics_come_together_by_time(cli: Cli, two: klamm.Store) -> None:
    rows = cli("tail", "orders", "users", "-n", 5).rows
    assert [(row["topic"], row["value"]) for row in rows] == [
        ("orders", "7"),
        ("users", "8"),
        ("orders", "9"),
        ("orders", "10"),
        ("users", "11"),
    ]
    assert [int(row["value"]) for row in cli("tail", "users", "orders", "--key", "k", "-n", 3).rows] == [9, 10, 11]
    assert len(cli("tail", "users", "users", "-n", 99).rows) == 4  # named twice, printed once


def test_every_way_to_start_takes_several_topics(cli: Cli, two: klamm.Store) -> None:
    def found(*options: object) -> list[int]:
        return sorted(int(row["value"]) for row in cli("tail", "orders", "users", *options).rows)

    assert found("--from", 3) == [9, 10, 11]
    assert found("--from", "2023-11-14T22:13:20.007Z") == [7, 8, 9, 10, 11]
    assert found("-p", 0, "-n", 99) == [0, 2, 3, 5, 6, 8, 9, 11]
    assert found("--group", "g", "-c", 2) != found("--group", "g", "-c", 10)
    assert found("--group", "g") == [] and two.groups.describe("g").lag == 0
    assert found("--from", "orders/0@3,users/0@1") == found("--from", "orders/0@3,orders/1@0,users/0@1")
    assert ": offset 5 is not in [0, 4)" in cli("tail", "orders", "users", "--from", 5, code=1).err
    assert "users: there is no partition 1" in cli("tail", "orders", "users", "-p", 1, code=1).err
    assert "did you mean 'users'?" in cli("tail", "orders", "user", code=1).err


def test_a_line_of_one_of_several_topics_names_it(cli: Cli, two: klamm.Store) -> None:
    lines = cli("tail", "orders", "users", "-n", 2, "-o", "table").text.splitlines()
    assert [line.split(maxsplit=1)[1] for line in lines] == ["orders/1/3  k  10", "users/0/3  k  11"]
    (line,) = cli("tail", "users", "-n", 1, "--format", "table").text.splitlines()
    assert line.split(maxsplit=1)[1] == "0/3  k  11"


def test_several_topics_are_followed(home: Path, two: klamm.Store, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with out.open("wb") as file:
        child = subprocess.Popen([KLAMM, "tail", "orders", "users", "-f", "-n", "0", "-o", r"%t=%v\n"], stdout=file)
    try:
        until(lambda: two.append("users", b"new") is not None and out.read_bytes(), "it has begun")
        two.append("orders", b"other")
        until(lambda: b"orders=other\n" in out.read_bytes(), "both are followed")
        assert b"users=new\n" in out.read_bytes()
    finally:
        child.kill()
        child.wait()


# Which


def test_filters_by_key_value_header_and_json(cli: Cli, store: klamm.Store) -> None:
    store.topics.create("orders")
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
    assert found("--key", "a", "-c", 1, "--from", 1) == [2]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--where", "user.id = 1"], "expected '$.user.id = 42'"),
        (["--where", "$..x = 1"], "is not a path into JSON"),
        (["--grep", "("], "not a regular expression"),
        (["-H", "source"], "expected --header name=value"),
        (["-o", "%q"], "format: %q is not a field (there are %t"),
        (["-o", "a\\"], "is not a field"),
        (["-o", "100%"], "is not a field"),
        (["-o", "yaml"], "'yaml' is invalid; expected json, table, or a format with fields"),
        (["%v"], "%v: is not the name of a topic (a format is an option: -o '%v')"),
    ],
)
def test_what_cannot_be_a_filter_or_a_format_is_refused(
    cli: Cli, orders: klamm.Store, arguments: list[str], complaint: str
) -> None:
    assert complaint in cli("tail", "orders", *arguments, code=2).err


def test_the_last_that_are_wanted_are_found_however_far_back(cli: Cli, store: klamm.Store) -> None:
    store.topics.create("orders", 2)
    rare = {3: b"rare", 4_000: b"rare", 29_000: b"rare"}
    store.append_many("orders", [(rare.get(n, b"usual"), b"%d" % n) for n in range(30_000)], partition=1)
    store.append_many("orders", [(b"usual", b"")] * 10, partition=0)
    assert values(cli, "--key", "rare") == [3, 4_000, 29_000]
    assert values(cli, "--key", "rare", "-n", 2) == [4_000, 29_000]
    assert values(cli, "--key", "nowhere") == []


# How they look


def test_in_a_pipe_a_record_is_a_line_of_json(cli: Cli, store: klamm.Store) -> None:
    store.topics.create("my.topic-1")
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
    store.topics.create("orders", 2)
    store.append("orders", b"\xff\x00v", key=b"k", partition=1, headers=[("a", b"1"), ("b", b"\xfe")], timestamp=T0)
    form = r"%t|%p|%o|%T|%M|%k|%v|%s|%h|%K|%S|%%\t\r\0\\\n"
    want = b"orders|1|0|2023-11-14T22:13:20.000Z|1700000000000|k|\xff\x00v|\xff\x00v|a=1,b=\xfe|1|3|%\t\r\0\\\n"
    assert cli("tail", "orders", "-o", form).out == want
    store.append("orders", None, partition=0)
    assert cli("tail", "orders", "-p", 0, "-o", "%k,%v,%K,%S").out == b",,-1,-1"


def test_on_a_terminal_control_characters_are_shown_not_sent() -> None:
    record = Record("t", 0, 0, T0, b"\x1b[31mred", b"a\x07\xff\tb\n", (), 0)
    assert Format("%k %v", raw=False).fill(record) == b"\\x1b[31mred a\\x07\\xff\tb\n"


def test_a_key_that_is_no_text_can_be_asked_for(home: Path, store: klamm.Store) -> None:
    store.topics.create("orders")
    store.append_many("orders", [(b"\xff", b"1"), (b"x", b"2")])
    done = subprocess.run([KLAMM, "tail", "orders", "--key", b"\xff", "-o", "%v"], capture_output=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, b"1")


# Times


def test_what_is_wanted_can_be_everything() -> None:
    assert Filter().takes_all and not Filter(key="").takes_all


# Following


@pytest.mark.parametrize("options", [["-n", "1"], ["--from", "19"], ["--group", "g"], ["--key", "k1", "-n", "1"]])
def test_following_shows_what_comes_and_ctrl_c_ends_it_well(
    home: Path, orders: klamm.Store, tmp_path: Path, options: list[str]
) -> None:
    out = tmp_path / "out"
    with out.open("wb") as file:
        child = subprocess.Popen(
            [KLAMM, "tail", "orders", "-f", "-o", r"%v\n", *options], stdout=file, stderr=subprocess.PIPE
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
        assert orders.groups.describe("g").lag == 0


def test_following_ends_after_so_many(cli: Cli, orders: klamm.Store) -> None:
    assert values(cli, "-f", "--count", 4, "-n", 5) == [15, 16, 17, 18]
