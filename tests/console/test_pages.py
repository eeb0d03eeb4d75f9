"""Every view: as HTML, as its JSON twin, and as the command line that it names."""

from __future__ import annotations

import io
import json
import re
import shlex
import time
from html import unescape
from pathlib import Path

import pytest

import klamm
from klamm.console.app import PAGES
from klamm.console.context import Visit
from klamm.console.history import Recorder
from klamm.console.pages.record_html import record_row
from klamm.console.rebalances import Rebalance
from klamm.console.sampler import GroupPoint, Look, look
from klamm.console.tail import read_growth
from klamm.where import Where
from tests.cli.conftest import Said
from tests.console.conftest import FOREVER, T0
from tests.console.visitor import Visitor
from tests.procs import until

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
    "/dead-letters/orders.dlq?error=ValueError",
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
    done = run_command(line.replace(" --look 60s", ""), capsysbinary)
    assert done.code == 0 or "nothing was done" in done.err, (line, done.err)


@pytest.mark.parametrize(
    ("address", "rows"),
    [
        ("/topics/orders/schema", None),
        ("/topics/orders/schema?from=%405&n=7", None),
        ("/topics/hostile/schema", None),
        ("/topics/orders/heat", None),
        ("/topics/orders/about", None),
        ("/life", None),
        ("/life?x=1&y=1", None),
        ("/dead-letters", "topics"),
        ("/dead-letters/orders.dlq", "letters"),
        ("/dead-letters/orders.dlq?error=ValueError", "letters"),
        ("/dead-letters/orders.dlq?error=KeyError", "letters"),
        ("/pipelines", "pipelines"),
        ("/pipelines/show?name=orders", None),
        ("/trouble", "trouble"),
    ],
)
def test_the_command_of_a_view_prints_what_its_json_twin_has(
    looker: Visitor, address: str, rows: str | None, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    data = looker.get(f"/api{address}").json
    printed = run_command(data.pop("command").replace(" --look 60s", ""), capsysbinary).rows
    assert printed == ([data] if rows is None else data[rows])


def test_the_command_of_a_letter_prints_that_letter(
    looker: Visitor, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    data = looker.get("/api/dead-letters/orders.dlq/0/1").json
    (printed,) = run_command(data["command"], capsysbinary).rows
    assert printed == {name: data[name] for name in printed} and printed["offset"] == 1


def test_the_command_of_the_trouble_page_looks_at_groups_too(
    store: klamm.Store, capsysbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    visitor = Visitor(store, store.path)
    first = look(store)
    visitor.sampler.add(first)
    until(lambda: time.time_ns() // 1_000_000 > first.time_ms, "a trend takes two moments")
    visitor.sampler.add(look(store))
    data = visitor.get("/api/trouble").json
    monkeypatch.setattr("klamm.console.sampler.INTERVAL_S", 0.01)
    printed = run_command(data["command"].replace("60s", "50ms"), capsysbinary).rows
    assert [row["what"] for row in printed] == [row["what"] for row in data["trouble"]]
    assert "Group billing does not catch up" in [row["what"] for row in printed]


def test_the_history_of_a_group_is_printed_by_its_command(
    store: klamm.Store, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    now_ms = time.time_ns() // 1_000_000
    rebalance = Rebalance(now_ms - 30_000, "two joined", 2, 4000, 17)
    Recorder(store, every_s=0).record(
        Look(now_ms - 30_000, {}, {"billing": GroupPoint(now_ms - 30_000, 60, 7, 900)}), {"billing": rebalance}
    )
    data = Visitor(store, store.path).get("/api/groups/show?group=billing&span=5m").json
    (printed,) = run_command(data["command"], capsysbinary).rows
    assert [(point["time_ms"], point["lag"]) for point in printed["history"]] == [(now_ms - 30_000, 7)]
    assert [printed[name] for name in ("history", "rebalances")] == [data[name] for name in ("history", "rebalances")]
    wrong = run_command(data["command"].replace("5m", "6m"), capsysbinary)
    assert wrong.code == 2 and "--history: '6m' is invalid (expected 5m, 30m" in wrong.err


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("topic schema orders", "user.id whole number 100%"),
        ("topic heat orders", "k0 12 20.0% 0=4, 1=4, 2=4"),
        ("topic show orders --all", "retention.ms -1 yes"),
        ("life", "generation 1 alive 2 board 6 x 3 ▀▀"),
        ("trouble", "6 dead letters in orders.dlq"),
        ("dlq list", "orders.dlq 6 ValueError=6"),
        ("group show billing --history 30m", "rebalances: nothing was recorded in this time"),
    ],
)
def test_people_read_a_view_as_a_table(
    shared: klamm.Store, line: str, words: str, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    done = run_command(f"klamm {line} --store {shlex.quote(shared.path)} -o table", capsysbinary)
    assert done.code == 0 and words in " ".join(f"{done.text} {done.err}".split()), done.text


@pytest.mark.parametrize("address", VIEWS)
def test_no_value_of_a_record_becomes_markup(looker: Visitor, address: str) -> None:
    text = looker.get(address).text
    assert "<script>alert" not in text and "onerror=" not in re.sub(r"&quot;|onerror=&", "", text)
    assert "<img" not in text and "\x00" not in text and "\u202e" not in text
    assert not re.search(r"<[^>]*\s(style|on\w+)=", text), "inline style or handler"


@pytest.mark.parametrize("address", VIEWS)
def test_a_saved_view_is_one_file(looker: Visitor, address: str) -> None:
    answer = looker.get(address + ("&" if "?" in address else "?") + "save=1")
    assert answer.status == 200 and answer.headers["content-disposition"].startswith(
        "attachment; filename*=UTF-8''klamm"
    )
    head = answer.text.partition("</head>")[0]
    assert "--accent:" in head and "<script" not in answer.text and 'rel="stylesheet"' not in answer.text
    assert "saved 20" in answer.words
    assert re.findall(r'href="([^"]*)"', answer.text) == ["data:,", "#content"], "from a file, links lead nowhere"
    assert not re.search(r"<(form|nav|button|input)\b", answer.text) and "default-src 'none'" in unescape(head)


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


# ---- what no record may do


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
    for view in (
        "",
        "?view=columns",
        "?view=text",
        "?where=$.n+%3E+1",
        "/schema",
        "/heat",
        "/0/0",
        "/produce?like=0/0",
    ):
        page, data = editor.get(f"/topics/poison{view}"), editor.get(f"/api/topics/poison{view}")
        assert (page.status, data.status) == (200, 200), view
        assert data.json["topic"] == "poison"
    growth = read_growth(editor.console, Visit("/", {"topic": "poison"}), Where("earliest"))
    assert len([record_row(record).encode() for record in growth.records]) == 2


def test_a_key_that_is_not_text_is_shown_as_hex(store: klamm.Store, visitor: Visitor) -> None:
    store.append("orders", b"v", key=b"\xff\xfe", partition=0, acks=1)
    store.append("orders", b"v", key=b"text", partition=0, acks=1)
    assert "ff fe v" in visitor.get("/topics/orders").words
    pages = [visitor.get(f"/topics/orders/0/{offset}").words for offset in (20, 21)]
    assert ["Records of this key" in words for words in pages] == [False, True], "a filter's key is text"


# ---- lists


def test_lists_are_filtered_by_a_part_of_the_name(store: klamm.Store, visitor: Visitor) -> None:
    assert 'name="q"' not in visitor.get("/topics").text, "a short list needs no filter"
    for number in range(30):
        store.topics.create(f"topic-{number:02}")
        store.groups.reset(f"group-{number:02}", "orders", to="earliest" if number == 17 else "latest")
    store.append_many("topic-07", [b"x"] * 9, acks=1)
    rows = visitor.get("/api/topics?q=c-1").json["topics"]
    assert [row["topic"] for row in rows] == [f"topic-{number}" for number in range(10, 20)]
    assert [row["group"] for row in visitor.get("/api/groups?q=-17").json["groups"]] == ["group-17"]
    assert "No topic has such a name." in visitor.get("/topics?q=%3Cb%3E").words
    assert "No group has such a name." in visitor.get("/groups?q=%3Cb%3E").words
    page = visitor.get("/")
    assert len(re.findall(r'data-key="topic ', page.text)) == 20 == len(re.findall(r'data-key="group ', page.text))
    assert 'data-key="topic topic-07"' in page.text and 'data-key="group group-17"' in page.text
    assert "All 34 topics" in page.words and "All 32 groups" in page.words


def test_a_setting_says_what_it_means(looker: Visitor) -> None:
    words = looker.get("/topics/orders/about").words
    assert "delete.retention.ms 86400000 = 1 d" in words and "index.interval.bytes 4096 = 4.0 KiB" in words


@pytest.mark.parametrize(
    ("step_ms", "head"),
    [
        (100, "20:53:20 .100"),
        (2_000, "20:53 :22"),
        (60_000, "20:54"),
        (3_600_000, "21:53"),
        (86_400_000, "2026-09-23 20:53"),
    ],
)
def test_columns_of_a_heat_map_differ(visitor: Visitor, store: klamm.Store, step_ms: int, head: str) -> None:
    """They have the seconds, or the date, where the minute is the same in two of them."""
    store.topics.create("timed", settings=FOREVER)
    for n in (0, 24):
        store.append("timed", b"x", timestamp=1_790_110_400_000 + n * step_ms - (n > 0), acks=1)
    page = visitor.get("/topics/timed/heat").text
    heads = re.findall(r"<th[^>]*>(.*?)</th>", page.partition("</thead>")[0])
    assert heads[2].replace("<br>", " ") == head and len(set(heads)) == 25
