"""`klamm send`: from arguments, lines, JSON and files, to the byte."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

import klamm
from tests.cli.conftest import Cli, everything
from tests.serving import KLAMM

T0 = 1_700_000_000_000


@pytest.fixture
def orders(store: klamm.Store) -> klamm.Store:
    store.topics.create("orders", 2)
    return store


def sent(home: Path, topic: str = "orders") -> list[tuple[object, ...]]:
    """(key, value, headers), in the order of partitions and offsets."""
    return [(key, value, headers) for _, _, _, key, value, headers in everything(home, topic)]


def test_arguments_are_a_record_each_with_one_key_and_headers(cli: Cli, home: Path, orders: klamm.Store) -> None:
    told = cli("send", "orders", "one", "zwölf", "-k", "alice", "-H", "source=web", "--header", "n=").rows
    assert told == [{"topic": "orders", "records": 2}]
    headers = (("source", b"web"), ("n", b""))
    assert sent(home) == [(b"alice", b"one", headers), (b"alice", "zwölf".encode(), headers)]


def test_a_value_may_look_like_an_option(cli: Cli, home: Path, orders: klamm.Store) -> None:
    cli("send", "orders", "-p", 0, "--", "-5")
    assert sent(home) == [(None, b"-5", ())]


def test_lines_of_stdin_are_a_record_each(cli: Cli, home: Path, orders: klamm.Store) -> None:
    cli("send", "orders", "-p", 1, "-k", "k", stdin=b"one\r\n\ntwo \xff\x00\nlast")
    assert sent(home) == [(b"k", b"one", ()), (b"k", b"", ()), (b"k", b"two \xff\x00", ()), (b"k", b"last", ())]


def test_lines_may_have_a_key_before_a_separator(cli: Cli, home: Path, orders: klamm.Store) -> None:
    cli("send", "orders", "-K", "=>", "--partition", 0, stdin=b"a=>1\n=>2\nb=>3=>4\n")
    assert sent(home) == [(b"a", b"1", ()), (b"", b"2", ()), (b"b", b"3=>4", ())]
    told = cli("send", "orders", "--separator", ":", stdin=b"a:1\nb\n", code=1).err
    assert "line 2: has no ':' in it" in told and "1 record before it was sent" in told


def test_json_lines_say_everything_about_a_record(cli: Cli, home: Path, orders: klamm.Store) -> None:
    lines = rb"""
{"key": "k", "value": "v", "headers": [["a", "1"], ["b", null]], "partition": 1, "timestamp": 1700000000000}
{"value": {"base64": "/w=="}, "headers": {"c": {"base64": "AA=="}}, "topic": "any", "offset": 7, "partition": 1}

{"key": null, "value": null, "partition": 1}
{"value": {"n": [1, 2]}, "partition": 1}
"""
    assert cli("send", "orders", "--json", "-H", "d=4", stdin=lines).rows == [{"topic": "orders", "records": 4}]
    found = everything(home, "orders")
    assert [row[3:] for row in found] == [
        (b"k", b"v", (("a", b"1"), ("b", None), ("d", b"4"))),
        (None, b"\xff", (("c", b"\0"), ("d", b"4"))),
        (None, None, (("d", b"4"),)),
        (None, b'{"n":[1,2]}', (("d", b"4"),)),
    ]
    assert found[0][:3] == (1, 0, T0)


def test_a_key_is_for_lines_of_json_without_one_and_a_partition_for_all(
    cli: Cli, home: Path, orders: klamm.Store
) -> None:
    cli(
        "send",
        "orders",
        "--json",
        "-k",
        "usual",
        "-p",
        0,
        stdin=b'{"value": "1"}\n{"key": "own", "value": "2", "partition": 1}',
    )
    assert [(row[0], row[3]) for row in everything(home, "orders")] == [(0, b"usual"), (0, b"own")]


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        (b"{", "line 2: is not JSON"),
        (b"[1]", "line 2: not a record"),
        (b'{"key": "k"}', 'expected {"key": "k", "value": "v"}'),
        (b'{"value": "v", "vlaue": 1}', "'vlaue' is not a field of a record"),
        (b'{"value": "v", "timestamp": "now"}', "timestamp is 'now'"),
        (b'{"value": "v", "partition": true}', "partition is True"),
        (b'{"value": "v", "headers": [1]}', "headers: invalid"),
        (b'{"value": {"base64": "?"}}', "line 2: value: is not base64"),
        (b'{"value": "\\ud800"}', "half a surrogate pair"),
        (b'{"value": "v", "partition": 9}', "partition 9"),
    ],
)
def test_a_line_that_is_no_record_is_told_with_its_number(
    cli: Cli, home: Path, orders: klamm.Store, line: bytes, complaint: str
) -> None:
    told = cli("send", "orders", "--json", stdin=b'{"value": "good"}\n' + line + b"\n", code=1).err
    assert complaint in told and "1 record before it was sent" in told
    assert [row[1] for row in sent(home)] == [b"good"]


def test_a_file_is_one_record_byte_for_byte(cli: Cli, home: Path, tmp_path: Path, orders: klamm.Store) -> None:
    (tmp_path / "a.bin").write_bytes(b"\x00\xff\n\r\n")
    (tmp_path / "b.bin").write_bytes(b"")
    cli("send", "orders", "--file", tmp_path / "a.bin", "--file", tmp_path / "b.bin", "-k", "k")
    assert sent(home) == [(b"k", b"\x00\xff\n\r\n", ()), (b"k", b"", ())]
    told = cli("send", "orders", "--file", tmp_path / "a.bin", "--file", tmp_path / "c.bin", code=2).err
    assert "c.bin: no such file" in told
    assert len(sent(home)) == 2


def test_a_tombstone_has_no_value(cli: Cli, home: Path, orders: klamm.Store) -> None:
    cli("send", "orders", "--tombstone", "-k", "gone")
    assert sent(home) == [(b"gone", None, ())]
    assert "--tombstone needs a --key" in cli("send", "orders", "--tombstone", code=2).err


def test_create_makes_store_and_topic_and_nothing_for_a_wrong_name(cli: Cli, home: Path) -> None:
    assert "Topic name is invalid" in cli("send", "a b", "v", "--create", code=1).err
    assert not home.exists()
    cli("send", "orders", "v", "--create")
    cli("send", "orders", "v", "--create", "--acks", 1)
    assert sent(home) == [(None, b"v", ())] * 2
    told = cli("send", "others", "v", code=1).err
    assert "Topic 'others' does not exist (did you mean 'orders'? else klamm topic create others" in told
    assert "klamm topic create new, or send --create" in cli("send", "new", "v", code=1).err


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["v", "--tombstone", "-k", "k"], "exclude each other"),
        (["v", "--json"], "are for lines of stdin"),
        (["v", "-K", ":"], "are for lines of stdin"),
        (["-K", ""], "--separator: is empty"),
        (["--json", "-K", ":"], "exclude each other"),
        (["-k", "k", "-K", ":"], "exclude each other"),
        (["v", "--acks", "2"], "expected all or 1"),
        (["v", "-H", "=x"], "expected --header name=value"),
    ],
)
def test_what_contradicts_itself_is_refused(
    cli: Cli, home: Path, orders: klamm.Store, arguments: list[str], complaint: str
) -> None:
    assert complaint in cli("send", "orders", *arguments, code=2).err
    assert sent(home) == []


def test_a_record_that_is_too_large_says_so(cli: Cli, orders: klamm.Store, tmp_path: Path) -> None:
    (tmp_path / "big").write_bytes(bytes(2 << 20))
    assert "bytes" in cli("send", "orders", "--file", tmp_path / "big", code=1).err


def test_what_tail_prints_send_takes(cli: Cli, home: Path, orders: klamm.Store) -> None:
    orders.append_many("orders", [(b"\xff", b"1", [("h", None)], T0), (None, None, [], T0 + 1), (b"", b"", [], T0 + 2)])
    orders.topics.create("copy", 2)
    cli("send", "copy", "--json", stdin=cli("tail", "orders").out)
    assert everything(home, "copy") == everything(home, "orders")


def test_arguments_that_are_no_text_are_sent_as_they_are(home: Path, orders: klamm.Store) -> None:
    command: list[str | bytes | Path] = [KLAMM, "send", "orders", b"\xff\xfe", "-k", b"\xfd", "-H", b"h=\xfc"]
    assert subprocess.run(command, capture_output=True, timeout=60).returncode == 0
    assert sent(home) == [(b"\xfd", b"\xff\xfe", (("h", b"\xfc"),))]


def test_lines_are_sent_as_they_come(home: Path, orders: klamm.Store) -> None:
    child = subprocess.Popen([KLAMM, "send", "orders"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdin is not None and child.stdout is not None
    with orders.consumer("orders", start="latest", form="values", wait=30) as consumer:
        for line in (b"one", b"two"):
            child.stdin.write(line + b"\n")
            child.stdin.flush()
            assert consumer.poll() == [line]
    child.stdin.close()
    assert child.stdout.read() == b'{"topic": "orders", "records": 2}\n'
    child.stdout.close()
    assert child.wait(30) == 0
