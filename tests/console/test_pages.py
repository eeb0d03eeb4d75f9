"""Every view: as HTML, as its JSON twin, and as the command line that it names."""

from __future__ import annotations

import io
import json
import re
import shlex
import signal
import subprocess
import sys
import time
from html import unescape
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import klamm
from klamm.console.app import PAGES
from klamm.console.context import Visit
from klamm.console.pages.record_html import record_row
from klamm.console.sampler import GroupPoint, Look, group_point
from klamm.console.tail import read_growth
from klamm.where import Where
from tests.cli.conftest import Said
from tests.console.conftest import T0
from tests.console.visitor import Visitor
from tests.procs import die_with_parent, until

VIEWS = [
    "/",
    "/topics",
    "/topics/orders",
    "/topics/orders?from=earliest&n=7&view=text",
    "/topics/orders?view=columns",
    "/topics/orders/about",
    "/topics/orders/schema",
    "/topics/orders/heat",
    "/topics/orders/purge",
    "/topics/orders/purge?before=%405",
    "/topics/hostile/schema",
    "/topics/hostile/heat",
    "/topics/orders/0/3",
    "/topics/hostile",
    "/topics/hostile/0/0",
    "/topics/hostile?view=hex",
    "/groups",
    "/groups/show?group=billing",
    "/groups/reset?group=billing",
    "/groups/reset?group=billing&to=earliest",
    "/transactions",
    "/dead-letters",
    "/dead-letters/orders.dlq",
    "/dead-letters/orders.dlq?plan=1&error=ValueError&rate=5",
    "/dead-letters/orders.dlq/0/0",
    "/trouble",
    "/connections",
    "/life",
    "/pipelines",
    "/pipelines/show?name=orders",
    "/sql",
]


def twin(address: str) -> str:
    return "/api/overview" if address == "/" else f"/api{address}"


def run_command(line: str, capsysbinary: pytest.CaptureFixture[bytes]) -> Said:
    """Run the command line that a page names."""
    from klamm.cli.main import run

    program, *arguments = shlex.split(line)
    assert program == "klamm"
    capsysbinary.readouterr()
    code = run(arguments)
    out, err = capsysbinary.readouterr()
    return Said(code, out, err.decode())


@pytest.mark.parametrize("address", VIEWS)
def test_a_view_is_html_and_json_and_a_command_line(
    looker: Visitor, address: str, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    page, data = looker.get(address), looker.get(twin(address))
    assert (page.status, data.status) == (200, 200), page.words
    assert page.headers["content-type"].startswith("text/html") and page.text.startswith("<!doctype html>")
    line = data.json["command"]
    assert line in page.words
    if line.startswith("curl "):
        return
    done = run_command(line.replace(" WHERE ", " earliest ").replace(" TOPIC ", " orders.dlq "), capsysbinary)
    assert done.code == 0 or "nothing was done" in done.err, (line, done.err)


@pytest.mark.parametrize("address", VIEWS)
def test_no_value_of_a_record_becomes_markup(looker: Visitor, address: str) -> None:
    text = looker.get(address).text
    assert "<script>alert" not in text and "onerror=" not in re.sub(r"&quot;|onerror=&", "", text)
    assert "<img" not in text and "\x00" not in text and "\u202e" not in text
    assert not re.search(r"<[^>]*\s(style|on\w+)=", text), "inline style or handler"


@pytest.mark.parametrize("address", [view for view in VIEWS if "reset" not in view])
def test_a_saved_view_is_one_file(looker: Visitor, address: str) -> None:
    answer = looker.get(address + ("&" if "?" in address else "?") + "save=1")
    assert answer.status == 200 and answer.headers["content-disposition"].startswith(
        "attachment; filename*=UTF-8''klamm"
    )
    head = answer.text.partition("</head>")[0]
    assert "--accent:" in head and "<script" not in answer.text and 'rel="stylesheet"' not in answer.text
    assert "saved 20" in answer.words and 'href="/static' not in answer.text


def test_every_page_is_among_the_views_that_are_tested() -> None:
    patterns = [re.escape(page.path).replace(r"\{topic\}", "[^/]+") for page in PAGES]
    patterns = [re.sub(r"\\\{\w+\\\}", "[^/]+", pattern) for pattern in patterns]
    paths = [view.partition("?")[0] for view in VIEWS] + ["/topics/orders/produce"]
    assert [pattern for pattern in patterns if not any(re.fullmatch(pattern, path) for path in paths)] == []


# ---- what they say


def test_the_overview_says_what_klamm_info_says(
    store: klamm.Store, visitor: Visitor, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    shown = visitor.get("/api/overview").json
    (told,) = run_command(f"klamm info {shlex.quote(store.path)}", capsysbinary).rows
    assert [(row["topic"], row["records"], row["size"]) for row in shown["topics"]] == [
        (row["topic"], row["offsets"], row["size"]) for row in told["topics"]
    ]
    assert [(row["group"], row["lag"]) for row in shown["groups"]] == [
        (row["group"], row["lag"]) for row in told["groups"]
    ]
    assert (shown["store"], shown["id"], shown["size"]) == (told["store"], told["id"], told["size"])
    assert len(shown["processes"]) == 1 and shown["processes"][0]["is_console"]


def test_a_group_says_how_far_it_is_behind_and_when_it_will_have_caught_up(visitor: Visitor) -> None:
    for n in range(3):
        visitor.sampler.add(Look(n * 1000, {"orders": 60}, {"billing": GroupPoint(n * 1000, 60, 25 - 10 * n, 9000)}))
    row = visitor.get("/api/groups").json["groups"][0]
    assert (row["group"], row["lag"], row["out_per_s"], row["catch_up_ms"]) == ("billing", 5, 10.0, 500)
    words = visitor.get("/groups").words
    assert "billing empty 0 5" in words and "in about 500 ms" in words


def test_a_record_s_page_shows_the_record(looker: Visitor) -> None:
    data = looker.get("/api/topics/orders/0/3").json
    assert (data["partition"], data["offset"], data["timestamp"]) == (0, 3, T0 + 9)
    assert json.loads(data["value"]) == {"n": 9, "user": {"id": 2}}
    words = looker.get("/topics/orders/0/3").words
    assert "user : {…} 1 field id : 2" in words
    assert "00000000 7b 22 6e 22" in looker.get("/topics/orders/0/3?view=hex").words


@pytest.mark.parametrize(
    ("address", "status", "word"),
    [
        ("/topics/nothing", 404, "nothing"),
        ("/topics/orders?from=wrong", 400, "wrong"),
        ("/topics/orders?n=0", 400, "from 1 to 500"),
        (f"/topics/orders?n={'9' * 5000}", 400, "from 1 to 500"),
        ("/topics/orders?partition=9", 404, "0 to 2"),
        ("/topics/orders?where=nonsense", 400, "where"),
        ("/topics/orders?header=x", 400, "name=value"),
        ("/topics/orders/0/999", 404, "offset 999"),
        ("/topics/orders/0/x", 404, "not a partition and an offset"),
        ("/groups/show?group=nothing", 404, "nothing"),
        ("/groups/show", 400, "group"),
        ("/groups/reset?group=billing&to=wrong", 400, "wrong"),
        ("/dead-letters/nothing", 404, "nothing"),
        ("/topics/orders/produce", 403, "--allow-changes"),
        ("/nothing/at/all", 404, "no such view"),
    ],
)
def test_what_cannot_be_shown_says_why(looker: Visitor, address: str, status: int, word: str) -> None:
    page, data = looker.get(address), looker.get(f"/api{address}")
    assert (page.status, data.status) == (status, status), page.words
    assert word in page.words and word in f"{data.json['error']} {data.json['hint']}"


@pytest.mark.parametrize(
    ("query", "numbers"),
    [
        ("n=3", [57, 58, 59]),
        ("from=earliest&n=4", [0, 1, 2, 3]),
        ("key=k3&n=3", [48, 53, 58]),
        ("header=even%3Dyes&from=earliest&n=3", [0, 2, 4]),
        ("where=%24.user.id+%3D+6&n=2", [48, 55]),
        ("contains=%22n%22%3A+5&n=3", [57, 58, 59]),
        ("contains=%22n%22%3A+5%5B0-2%5D", []),
        ("partition=1&from=18", [55, 58]),
        (f"from=%40{10}&partition=0&n=1", [30]),
    ],
)
def test_records_are_found_by_offset_time_key_header_and_json(
    looker: Visitor, query: str, numbers: list[int], capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    data = looker.get(f"/api/topics/orders?{query}").json
    assert [json.loads(record["value"])["n"] for record in data["records"]] == numbers
    told = sorted(run_command(data["command"], capsysbinary).rows, key=lambda row: row["timestamp"])
    assert told[: len(numbers)] == data["records"]
    if "from" not in query or "partition" in query:  # else it prints all that follow, and the page has the first
        assert len(told) == len(numbers)


def test_a_page_leads_to_the_next_until_all_were_shown(looker: Visitor) -> None:
    address, numbers = "/topics/orders?n=25", []
    while address:
        data = looker.get(f"/api{address}").json
        numbers += [json.loads(record["value"])["n"] for record in reversed(data["records"])]
        link = re.search(r'href="([^"]+)"[^>]*id="more"', looker.get(address).text)
        assert (link is None) == (data["next"] is None)
        address = link[1].replace("&amp;", "&") if link else ""
        assert not link or data["next"] == f"/api{address}"
    assert numbers == list(range(59, -1, -1))


def test_settings_partitions_and_segments_are_those_of_the_topic(store: klamm.Store, visitor: Visitor) -> None:
    store["orders"].alter(retention_ms=1234567)
    data = visitor.get("/api/topics/orders/about").json
    assert data["settings"]["retention.ms"] == "1234567" and data["set"] == {"retention.ms": "1234567"}
    info = store["orders"].info()
    assert [row["size"] for row in data["partitions"]] == [partition.size for partition in info.partitions]
    for row in data["partitions"]:
        assert [part["base_offset"] for part in row["segments"]] == [0] and row["segments"][0]["size"] == row["size"]


# ---- exports


@pytest.mark.parametrize("form", ["jsonl", "csv", "parquet"])
def test_an_export_is_that_of_klamm_export(
    store: klamm.Store, visitor: Visitor, tmp_path: Path, form: str, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    answer = visitor.get(f"/topics/orders/export?format={form}")
    assert answer.headers["content-disposition"] == f"attachment; filename*=UTF-8''orders.{form}"
    file = tmp_path / f"told.{form}"
    assert run_command(f"klamm export orders --to {file} --store {shlex.quote(store.path)}", capsysbinary).code == 0
    if form == "parquet":
        from io import BytesIO

        import pyarrow.parquet as pq

        assert pq.read_table(BytesIO(answer.body)).equals(pq.read_table(file))
    else:
        assert answer.body == file.read_bytes()


def test_an_export_has_what_the_filter_takes(looker: Visitor) -> None:
    lines = looker.get("/topics/orders/export?key=k1&from=earliest").text.splitlines()
    assert sorted(json.loads(json.loads(line)["value"])["n"] for line in lines) == list(range(1, 60, 5))
    parquet = pytest.importorskip("pyarrow.parquet")
    body = looker.get("/topics/orders/export?key=k1&format=parquet").body
    rows = parquet.read_table(io.BytesIO(body)).to_pylist()
    assert sorted(json.loads(row["value"])["n"] for row in rows) == list(range(1, 60, 5))
    assert {row["key"] for row in rows} == {b"k1"}
    assert "Parquet" in looker.get("/topics/orders").words


def test_what_csv_cannot_say_is_an_error_and_no_torso(store: klamm.Store, visitor: Visitor) -> None:
    store.append("orders", None, key=b"k")
    answer = visitor.get("/topics/orders/export?format=csv")
    assert answer.status == 400 and "tombstone" in answer.json["error"]


# ---- changes


def test_a_record_is_produced_as_the_form_says(store: klamm.Store, editor: Visitor) -> None:
    token = editor.csrf("/topics/orders/produce")
    fields = {"csrf": token, "key": "k", "value": '{"a": 1}\r\n ', "headers": "trace = 7\n", "partition": "2"}
    answer = editor.post("/topics/orders/produce", fields)
    assert (answer.status, answer.headers["location"]) == (303, "/topics/orders/2/20")
    (record,) = store.tail("orders", 1, start={2: 20})
    assert (record.key, record.value, list(record.headers)) == (b"k", b'{"a": 1}\n ', [("trace", b"7")])


@pytest.mark.parametrize(
    ("kind", "value", "sent"), [("hex", "00 ff", b"\x00\xff"), ("none", "", None), ("text", "", b"")]
)
def test_a_value_is_text_or_hex_or_none(
    store: klamm.Store, editor: Visitor, kind: str, value: str, sent: bytes | None
) -> None:
    token = editor.csrf("/topics/orders/produce")
    answer = editor.post("/topics/orders/produce", {"csrf": token, "kind": kind, "value": value, "key": "k"})
    assert answer.status == 303
    (record,) = store.tail("orders", 1)
    assert record.value == sent


def test_a_form_that_makes_no_sense_appends_nothing(store: klamm.Store, editor: Visitor) -> None:
    token = editor.csrf("/topics/orders/produce")
    for fields, word in (({"kind": "hex", "value": "xy"}, "hex"), ({"headers": "x"}, "name=value")):
        answer = editor.post("/topics/orders/produce", {"csrf": token, **fields})
        assert answer.status >= 400 and word in answer.words
    assert store["orders"].info().count == 60


@pytest.mark.parametrize(
    ("address", "typed"),
    [
        ("/topics/orders?from=then&key=k%22", ['name="from" value="then"', 'name="key" value="k&quot;"']),
        ("/topics/orders/purge?before=then", ['name="before" value="then"']),
        ("/topics/orders/schema?n=0", ['name="n" value="0"']),
        ("/groups/reset?group=billing&to=then", ['name="to" value="then"']),
        ("/dead-letters/orders.dlq?plan=1&limit=some", ['name="limit" value="some"']),
        ("/sql?q=selct+%3C1", [">selct &lt;1</textarea>"]),
    ],
)
def test_an_error_leaves_the_form_as_it_was_filled_in(editor: Visitor, address: str, typed: list[str]) -> None:
    answer = editor.get(address)
    assert answer.status == 400 and 'role="alert"' in answer.text
    assert all(text in answer.text for text in typed)


def test_a_record_that_cannot_be_appended_is_not_typed_again(store: klamm.Store, editor: Visitor) -> None:
    fields = {"csrf": editor.csrf("/topics/orders/produce"), "key": "k<", "kind": "hex", "value": "\nxy", "partition": "1"}
    page = editor.post("/topics/orders/produce", {**fields, "headers": "a=b"}).text
    assert dict((name, unescape(text)) for text, name in _areas(page)) == {"value": "\r\nxy", "headers": "a=b"}
    assert 'name="key" value="k&lt;"' in page and _chosen(page, "kind") == "hex" and _chosen(page, "partition") == "1"
    letter = "/dead-letters/orders.dlq/0/0"
    fields = {"csrf": editor.csrf(letter), "kind": "hex", "value": "xy", "to": "elsewhere"}
    page = editor.post(letter, fields).text
    assert ">xy</textarea>" in page and 'name="to" value="elsewhere"' in page and "is not hex" in page


POISON = {
    "half of a pair": b'{"a\\ud800": "\\udfff", "\\udc00": ["\\ud800"]}',
    "a number of 5000 digits": b'{"n": ' + b"9" * 5000 + b"}",
    "deep": b"[" * 9000,
    "not a number": b'{"n": NaN, "m": 1e999}',
    "a name twice": b'{"n": 1, "n": 2}',
}


@pytest.mark.parametrize("timestamp", [T0, 2**63 - 1])
@pytest.mark.parametrize("value", POISON.values(), ids=POISON.keys())
def test_no_record_keeps_a_topic_from_being_shown(
    store: klamm.Store, editor: Visitor, value: bytes, timestamp: int
) -> None:
    store.topics.create("poison", settings={"message.timestamp.after.max.ms": 2**63 - 1})
    for key, time_ms in ((value[:60], T0), (b"k", timestamp)):
        store.append("poison", value, key=key, headers={"h": value}, timestamp=time_ms, acks=1)
    for view in ("", "?view=columns", "?view=text", "?where=$.n+%3E+1", "/schema", "/heat", "/0/0", "/produce?like=0/0"):
        page, data = editor.get(f"/topics/poison{view}"), editor.get(f"/api/topics/poison{view}")
        assert (page.status, data.status) == (200, 200), view
        assert data.json["topic"] == "poison"
    growth = read_growth(editor.console, Visit("/", {"topic": "poison"}), Where("earliest"))
    assert len([record_row(record).encode() for record in growth.records]) == 2


TYPED_AGAIN = {
    "markup": b'{"a": "<b>&amp;"}\n',
    "newlines": b"\n\nx\n",
    "carriage return": b"\r\n",
    "binary": b"\x00\xff",
    "tombstone": None,
    "joined emoji": "\U0001f468\u200d\U0001f469\u200d\U0001f467".encode(),
    "marks of direction": "\ufeff\u05d0\u200f \u202egnp.exe".encode(),
    "escape": b"\x1b[31mred",
    "what spells out": rb"\u202e\x1b",
}


@pytest.mark.parametrize("value", TYPED_AGAIN.values(), ids=TYPED_AGAIN.keys())
def test_a_record_that_is_sent_again_is_the_same(store: klamm.Store, editor: Visitor, value: bytes | None) -> None:
    store.append("orders", value, key=b"again", partition=0, headers={"h": "v=w"})
    page = editor.get("/topics/orders/produce?like=0/20").text
    fields = dict(re.findall(r'<input name="(\w+)" value="([^"]*)"', page))
    fields |= {name: unescape(text) for text, name in _areas(page)}
    fields |= {"kind": _chosen(page, "kind"), "csrf": editor.csrf("/topics/orders/produce"), "partition": "0"}
    assert editor.post("/topics/orders/produce", fields).headers["location"] == "/topics/orders/0/21"
    (record,) = store.tail("orders", 1, start={0: 21, 1: 20, 2: 20})
    assert (record.key, record.value, list(record.headers)) == (b"again", value, [("h", b"v=w")])


@pytest.mark.parametrize(
    ("key", "headers", "is_exact"),
    [
        (b" k ", [("h", b"v=w")], True),
        (None, [], True),
        (b"a\nb", [], False),
        (b"", [], False),
        (b"\xff", [], False),
        (b"k", [("h", b" v")], False),
        (b"k", [("h", b"1\n2")], False),
        (b"k", [("h", None)], False),
        (b"k", [("h", "a\u2028b".encode())], True),
    ],
)
def test_a_key_or_header_that_cannot_be_typed_is_said_to_be_another(
    store: klamm.Store, editor: Visitor, key: bytes | None, headers: list[tuple[str, Any]], is_exact: bool
) -> None:
    store.append("orders", b"v", key=key, partition=0, headers=headers)
    page = editor.get("/topics/orders/produce?like=0/20")
    assert ("cannot be typed as they are" not in page.words) is is_exact
    fields = {name: unescape(text) for name, text in re.findall(r'<input name="(\w+)" value="([^"]*)"', page.text)}
    fields |= {name: unescape(text) for text, name in _areas(page.text)}
    if is_exact:
        fields["csrf"] = editor.csrf("/topics/orders/produce")
        assert editor.post("/topics/orders/produce", fields).status == 303
        (record,) = store.tail("orders", 1)
        assert (record.key, list(record.headers)) == (key, headers)


def _areas(page: str) -> list[tuple[str, str]]:
    found = re.findall(r'<textarea name="(\w+)"[^>]*>(.*?)</textarea>', page, re.DOTALL)
    return [(text.removeprefix("\n").replace("\n", "\r\n"), name) for name, text in found]


def _chosen(page: str, name: str) -> str:
    options = re.search(rf'<select name="{name}">(.*?)</select>', page, re.DOTALL)
    assert options
    chosen = re.search(r'<option value="(\w*)" selected', options[1])
    return chosen[1] if chosen else ""


def _plan_fields(editor: Visitor, to: str) -> dict[str, str]:
    page = editor.get(f"/groups/reset?group=billing&to={to}").text
    form = page.partition('method="post"')[0].rpartition("<form")[2] + page.partition('method="post"')[2]
    return dict(re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)"', form))


def test_a_reset_says_what_it_means_and_then_does_it(store: klamm.Store, editor: Visitor) -> None:
    for n in range(3):
        editor.sampler.add(Look(n * 1000, {"orders": 60}, {"billing": GroupPoint(n * 1000, 60, 25 - 10 * n, 9000)}))
    data = editor.get("/api/groups/reset?group=billing&to=%4010").json
    assert (data["again"], data["skipped"], data["again_ms"]) == (25, 0, 2500)
    size = sum(partition.size for partition in store["orders"].info().partitions)
    assert data["again_bytes"] == pytest.approx(size * 25 / 60, rel=0.05)
    assert [(row["before"], row["after"]) for row in data["plan"]] == [(20, 10), (15, 10), (20, 10)]
    answer = editor.post("/groups/reset", _plan_fields(editor, "%4010"))
    assert (answer.status, answer.headers["location"]) == (303, "/groups/show?group=billing")
    committed = [offset.committed for offset in store.groups.describe("billing").offsets]
    assert [position and position.offset for position in committed] == [10, 10, 10]


def test_a_plan_that_is_another_one_by_now_is_not_carried_out(store: klamm.Store, editor: Visitor) -> None:
    fields = _plan_fields(editor, "earliest")
    store.groups.reset("billing", "orders", to={0: 19, 1: 15, 2: 20})
    answer = editor.post("/groups/reset", fields)
    assert answer.status == 409 and store.groups.describe("billing").lag == 6


def test_a_group_with_members_is_not_moved(store: klamm.Store, editor: Visitor) -> None:
    with store.consumer("orders", group="billing", wait=0) as consumer:
        consumer.poll()
        assert "has members" in editor.get("/groups/reset?group=billing&to=earliest").words


def test_an_open_transaction_is_shown_and_aborted(store: klamm.Store, editor: Visitor) -> None:
    with pytest.raises(klamm.TransactionError), store.transaction(batch_bytes=1) as tx:  # noqa: PT012
        tx.send("orders", b"x")
        (row,) = editor.get("/api/transactions").json["transactions"]
        assert row["state"] == "ongoing" and row["age_ms"] >= 0
        token = editor.csrf("/transactions")
        shown = {name: str(row[name]) for name in ("producer_id", "epoch", "started_ms")}
        assert all(
            f'name="{name}" value="{value}"' in editor.get("/transactions").text for name, value in shown.items()
        )
        for name in ("epoch", "started_ms"):  # of one before
            answer = editor.post(
                "/transactions", {"csrf": token, **shown, name: str(row[name] - 1 if row[name] else 7)}
            )
            assert answer.status == 409 and "is over" in answer.words
        assert editor.get("/api/transactions").json["transactions"][0]["state"] == "ongoing"
        answer = editor.post("/transactions", {"csrf": token, **shown})
        assert answer.status == 303
    assert all(row["state"] != "ongoing" for row in editor.get("/api/transactions").json["transactions"])


# ---- trouble


def found(visitor: Visitor, what: str) -> list[dict[str, Any]]:
    return [row for row in visitor.get("/api/trouble").json["trouble"] if what in row["what"]]


def test_trouble_names_dead_letters_and_groups_that_do_not_catch_up(visitor: Visitor) -> None:
    (letters,) = found(visitor, "dead letters in orders.dlq")
    assert letters["command"] == "klamm dlq list orders.dlq --store events"
    assert found(visitor, "does not catch up") == []
    for n in range(3):
        visitor.sampler.add(Look(n * 1000, {"orders": 60}, {"billing": GroupPoint(n * 1000, 60, 5, 9000)}))
    (group,) = found(visitor, "Group billing does not catch up")
    assert group["evidence"].startswith("5 records,") and "it has no members" in group["evidence"]


def test_trouble_names_a_member_that_stands_still(store: klamm.Store, visitor: Visitor) -> None:
    """Whose handler hangs, or fails at a record again and again: where it stands, and since when."""
    now_ms = time.time_ns() // 1_000_000
    with store.consumer("orders", group="billing", wait=0, member="worker-1") as consumer:
        consumer.poll()
        for time_ms in (now_ms - 61_000, now_ms - 1000, now_ms):
            visitor.sampler.add(Look(time_ms, {}, {"billing": group_point(store.groups.describe("billing"), time_ms)}))
        rows = found(visitor, "Group billing stands still at orders/1")
        assert [(row["see"], row["command"]) for row in rows] == [
            ("/topics/orders/1/15", "klamm tail orders -p 1 --from @15 -c 1 --store events")
        ]
        assert "worker-1 reads orders/1 and has committed nothing for 1 min 1 s" in rows[0]["evidence"]
        assert found(visitor, "stands still at orders/0") == [], "it has read that"
        consumer.commit({("orders", 1): 16})
        visitor.sampler.add(Look(now_ms, {}, {"billing": group_point(store.groups.describe("billing"), now_ms)}))
        assert found(visitor, "stands still") == []


def test_trouble_names_a_stopped_process(store: klamm.Store, visitor: Visitor) -> None:
    code = "import sys, time, klamm; s = klamm.open(sys.argv[1]); print('open', flush=True); time.sleep(99)"
    command = [sys.executable, "-c", code, store.path]
    with subprocess.Popen(command, stdout=subprocess.PIPE, preexec_fn=die_with_parent) as process:  # noqa: PLW1509
        try:
            assert process.stdout is not None and process.stdout.readline()
            assert found(visitor, "is stopped") == []
            process.send_signal(signal.SIGSTOP)
            until(lambda: found(visitor, f"Process {process.pid} is stopped"), "the process is stopped")
            assert found(visitor, "is stopped")[0]["command"] == f"kill -CONT {process.pid}"
        finally:
            process.kill()


def test_trouble_names_damage(store: klamm.Store, visitor: Visitor) -> None:
    (cut,) = list(Path(store.path).glob("topics/orders-*/0/*.log"))
    cut.with_name(f"{cut.name}.cut-1790000000000").write_bytes(b"x" * 100)
    (row,) = found(visitor, "Recovery cut off 100 B of orders/0")
    assert row["command"] == "klamm salvage events"
    assert "orders/0" in visitor.get("/").words and visitor.get("/api/overview").json["recovery"][0]["size"] == 100


def test_trouble_names_a_disk_that_is_nearly_full(visitor: Visitor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(total=100 << 30, free=500 << 20))
    (row,) = found(visitor, "disk is nearly full")
    assert "500.0 MiB of 100.0 GiB are free" in row["evidence"]


def test_trouble_names_a_stuck_transaction(store: klamm.Store, visitor: Visitor) -> None:
    with store.transaction(batch_bytes=1) as tx:
        tx.send("orders", b"x")
        assert found(visitor, "stuck") == []
        tx.abort()
    with store.transaction(batch_bytes=1, timeout=0.001) as tx:
        tx.send("orders", b"x")
        until(lambda: found(visitor, "is stuck"), "the transaction is older than its timeout")
        (row,) = found(visitor, "is stuck")
        assert row["command"].startswith("klamm tx abort ")
        tx.abort()


@pytest.mark.parametrize(
    ("row", "overdue"),
    [
        ({"state": "ongoing", "age_ms": 59, "timeout_ms": 60}, False),
        ({"state": "ongoing", "age_ms": 61, "timeout_ms": 60}, True),
        ({"state": "ongoing", "age_ms": None, "timeout_ms": 60}, True),
        ({"state": "prepared_commit", "age_ms": 99, "timeout_ms": 60}, False),
    ],
)
def test_a_transaction_is_overdue_after_its_timeout(row: dict[str, Any], overdue: bool) -> None:
    from klamm.console.pages.transactions import is_overdue

    assert is_overdue(row) is overdue


# ---- a topic over time, its fields, its purge


def test_the_timeline_counts_every_record_and_leads_to_times(looker: Visitor) -> None:
    data = looker.get("/api/topics/orders").json["timeline"]
    assert sum(data["records"]) == 60 and data["edges_ms"][0] == T0 and data["edges_ms"][-1] == T0 + 60
    page = looker.get("/topics/orders?key=k1").text
    links = re.findall(r'href="(/topics/orders\?key=k1&amp;from=[^"]+)"', page)
    assert len(links) == 6
    first = looker.get(f"/api{links[3].replace('&amp;', '&')}").json["records"][0]
    assert T0 + 25 <= first["timestamp"] <= T0 + 35
    assert looker.get("/api/topics/orders?at=0%405").json["timeline"] is None


def test_the_schema_of_a_topic_is_inferred_and_its_drift_marked(store: klamm.Store, visitor: Visitor) -> None:
    data = visitor.get("/api/topics/orders/schema").json
    assert (data["records"], data["json"]) == (60, 60)
    assert [(row["path"], row["types"], row["share"], row["drift"]) for row in data["fields"]] == [
        ("$", ["object"], 1.0, None),
        ("n", ["whole number"], 1.0, None),
        ("user", ["object"], 1.0, None),
        ("user.id", ["whole number"], 1.0, None),
    ]
    for n in range(60):
        store.append("orders", b'{"n": "text"}', partition=0, timestamp=T0 + 100 + n, acks=1)
    data = visitor.get("/api/topics/orders/schema").json
    assert {row["path"]: row["drift"] for row in data["fields"] if row["drift"]} == {
        "n": "whole number before, text now",
        "user": "gone",
        "user.id": "gone",
    }
    assert "3 fields changed" in visitor.get("/topics/orders/schema").words


def test_the_heat_map_has_each_partition_and_key(looker: Visitor) -> None:
    data = looker.get("/api/topics/orders/heat").json
    assert [sum(row["records"]) for row in data["partitions"]] == [20, 20, 20]
    assert {row["key"]: row["records"] for row in data["keys"]} == {f"k{n}": 12 for n in range(5)}
    assert all(sum(row["by_partition"].values()) == 12 for row in data["keys"])


def test_the_heat_map_holds_keys_and_no_values(looker: Visitor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("klamm.console.record_search.BUDGET_BYTES", 60 * len(b"k1"))
    assert looker.get("/api/topics/orders/heat").json["sample"] == 60


def test_fields_are_shown_as_columns(looker: Visitor) -> None:
    words = looker.get("/topics/orders?view=columns&n=2").words
    assert "key n user.id" in words and "k4 59 3" in words


def test_a_purge_shows_what_goes_and_deletes_no_more_than_that(store: klamm.Store, editor: Visitor) -> None:
    data = editor.get("/api/topics/orders/purge?before=latest").json
    assert (data["records"], data["left"], data["not_read_by"]) == (60, 0, ["billing"])
    data = editor.get("/api/topics/orders/purge?before=%405&partition=1").json
    assert [(row["partition"], row["start"], row["end"]) for row in data["plan"]] == [(1, 0, 5)]
    page = editor.get("/topics/orders/purge?before=latest").text
    until_field = re.search(r'name="until" value="([^"]+)"', page)
    assert until_field
    store.append("orders", b"came since", partition=0, acks=1)
    fields = {"csrf": editor.csrf("/topics/orders/purge?before=latest"), "until": until_field[1]}
    assert editor.post("/topics/orders/purge", fields).status == 303
    assert [record.value for record in store.tail("orders", 99)] == [b"came since"]
    assert editor.post("/topics/orders/purge", {**fields, "until": "latest"}).status == 400


def test_a_console_that_only_reads_does_not_purge(store: klamm.Store, visitor: Visitor) -> None:
    assert "only reads" in visitor.get("/topics/orders/purge?before=latest").words
    assert 'name="until"' not in visitor.get("/topics/orders/purge?before=latest").text
