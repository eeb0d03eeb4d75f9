"""`klamm export` and `klamm import`: what goes out comes back."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest

import klamm
from klamm.client.plain import as_plain
from tests.cli.conftest import Cli, everything
from tests.crash.mounts import small_disk

T0 = 1_700_000_000_000
ANYTHING = [
    (b"k", b"v", [("h", b"1"), ("h", b"2")], T0),
    (b"\xff\x00", b"\xfe\r\n", [("binary", b"\xfd"), ("none", None), ("empty", b"")], T0 + 1),
    (None, "grüße, \"quoted\"\n'and' more".encode(), [], T0 + 2),
    (b"k", None, [], T0 + 3),
    (b"", b"", [], T0 + 4),
    (b"big", b"x" * 300_000, [], T0 + 5),
]
TEXT = [
    (b"k", b"v", [("h", b"1"), ("none", None), ("binary", b"\xfd")], T0),
    (None, "a,\"b\"\r\nc\rd\ne 'f' \tgrüße".encode(), [], T0 + 1),
    (b"k;", b"", [], T0 + 2),
    (b"big", b"x" * 300_000, [], T0 + 3),
]


Fill = Callable[[Sequence[Any]], klamm.Store]


@pytest.fixture
def fill(store: klamm.Store) -> Fill:
    """Makes a topic of two partitions with these records in the second, and an empty one like it."""

    def fill(rows: Sequence[Any]) -> klamm.Store:
        store.topics.create("orders", 2)
        store.topics.create("copy", 2)
        store.append_many("orders", rows, partition=1)
        return store

    return fill


@pytest.mark.parametrize(
    ("name", "rows", "options"),
    [
        ("orders.jsonl", ANYTHING, []),
        ("orders.ndjson", ANYTHING, []),
        ("orders.parquet", ANYTHING, []),
        ("orders", ANYTHING, ["--format", "jsonl"]),
        ("orders.csv", TEXT, []),
        ("orders.csv", [row for row in ANYTHING if row[1] is not None and row[0] != b""], ["--base64"]),
    ],
)
def test_what_is_exported_and_imported_is_the_same(
    cli: Cli,
    home: Path,
    fill: Fill,
    name: str,
    rows: Sequence[tuple[object, ...]],
    options: list[str],
) -> None:
    fill(rows)
    assert cli("export", "orders", "--to", name, *options).rows == [{"to": name, "records": len(rows)}]
    assert cli("import", "copy", name, "--partitions", *options).rows == [{"topic": "copy", "records": len(rows)}]
    assert everything(home, "copy") == everything(home, "orders") != []


@pytest.mark.parametrize("form", ["jsonl", "csv", "parquet"])
def test_an_empty_topic_goes_out_and_in(cli: Cli, home: Path, fill: Fill, form: str) -> None:
    fill([])
    cli("export", "orders", "--to", f"e.{form}")
    assert cli("import", "copy", f"e.{form}").rows == [{"topic": "copy", "records": 0}]


@pytest.mark.parametrize("form", ["jsonl", "csv"])
def test_a_pipe_goes_from_one_store_to_another(cli: Cli, home: Path, tmp_path: Path, fill: Fill, form: str) -> None:
    fill(TEXT)
    out = cli("export", "orders", "--format", form).out
    other = tmp_path / "other"
    cli("import", "copy", "--create", "--store", other, "--format", form, stdin=out)
    assert [row[2:] for row in everything(other, "copy")] == [row[2:] for row in everything(home, "orders")]


def test_without_partitions_keys_decide(cli: Cli, home: Path, fill: Fill) -> None:
    store = fill([(b"k%d" % n, b"v", [], T0 + n) for n in range(20)])
    for form in ("jsonl", "parquet", "csv"):
        store.topics.create(f"by-key-{form}", 2)
        cli("export", "orders", "--to", f"o.{form}")
        cli("import", f"by-key-{form}", f"o.{form}")
        assert {row[0] for row in everything(home, f"by-key-{form}")} == {0, 1}


def test_formats_are_what_others_read(cli: Cli, fill: Fill, tmp_path: Path) -> None:
    fill(TEXT[:1])
    cli("export", "orders", "--to", "o.jsonl")
    assert json.loads(Path("o.jsonl").read_text()) == cli("tail", "orders").rows[0]
    cli("export", "orders", "--to", "o.csv")
    with open("o.csv", newline="") as file:
        (row,) = csv.DictReader(file)
    assert (row["key"], row["value"], row["timestamp"], row["partition"]) == ("k", "v", str(T0), "1")
    assert json.loads(row["headers"]) == [["h", "1"], ["none", None], ["binary", {"base64": "/Q=="}]]
    cli("export", "orders", "--to", "o.parquet")
    table = pa.parquet.read_table("o.parquet")
    assert table["value"].to_pylist() == [b"v"] and table["timestamp"][0].value == T0


@pytest.mark.parametrize("form", ["jsonl", "csv", "parquet"])
def test_a_part_by_time(cli: Cli, home: Path, fill: Fill, form: str) -> None:
    fill([(None, b"%d" % n, [], T0 + n * 1000) for n in range(10)])
    options = ["--since", "2023-11-14T22:13:22Z", "--until", "2023-11-15T03:43:25+05:30"]
    assert cli("export", "orders", "--to", f"o.{form}", *options).rows[0]["records"] == 3
    cli("import", "copy", f"o.{form}")
    assert sorted(row[4] for row in everything(home, "copy")) == [b"2", b"3", b"4"]
    assert cli("export", "orders", "--to", f"p.{form}", "--since", "1h").rows[0]["records"] == 0
    assert cli("export", "orders", "--to", f"q.{form}", "--until", "2023-11-14T22:13:20Z").rows[0]["records"] == 0


@pytest.mark.parametrize("form", ["jsonl", "csv", "parquet"])
def test_the_result_of_a_query(cli: Cli, fill: Fill, form: str) -> None:
    fill([(b"a", b"1", [], T0), (b"b", b"2", [], T0)])
    query = "select text(key) as k, text(value)::int as n, [1, 2] as l from orders order by 1"
    assert cli("export", "--sql", query, "--to", f"r.{form}").rows == [{"to": f"r.{form}", "rows": 2}]
    if form == "jsonl":
        rows = [json.loads(line) for line in Path("r.jsonl").read_text().splitlines()]
        assert rows == [{"k": "a", "n": 1, "l": [1, 2]}, {"k": "b", "n": 2, "l": [1, 2]}]
    elif form == "csv":
        assert Path("r.csv").read_text() == 'k,n,l\na,1,"[1, 2]"\nb,2,"[1, 2]"\n'
    else:
        assert pa.parquet.read_table("r.parquet").to_pylist()[1] == {"k": "b", "n": 2, "l": [1, 2]}
    refused = cli("export", "--sql", "select * from nothing", "--to", f"x.{form}", code=2)
    assert "Topic 'nothing' does not exist" in refused.err
    assert not Path(f"x.{form}").exists() and not Path(f"x.{form}.part").exists()


def test_a_file_that_is_there_is_kept_unless_forced(cli: Cli, fill: Fill) -> None:
    fill(TEXT)
    Path("o.jsonl").write_text("precious")
    assert "o.jsonl: already exists (--force overwrites it)" in cli("export", "orders", "--to", "o.jsonl", code=2).err
    assert Path("o.jsonl").read_text() == "precious"
    cli("export", "orders", "--to", "o.jsonl", "--force")
    assert len(Path("o.jsonl").read_text().splitlines()) == len(TEXT)


def test_what_csv_cannot_say_is_refused_and_leaves_no_file(cli: Cli, fill: Fill) -> None:
    store = fill([(b"\xff", b"v", [], T0)])
    assert "orders/1/0: its key is not text (--base64" in cli("export", "orders", "--to", "o.csv", code=1).err
    store.append("copy", None, key=b"k", partition=0)
    assert "copy/0/0: a tombstone" in cli("export", "copy", "--to", "o.csv", "--base64", code=1).err
    assert not list(Path.cwd().glob("o.csv*"))


@pytest.mark.parametrize(
    ("arguments", "code", "complaint"),
    [
        (["export"], 2, "export: nothing to export (give a topic, or --sql"),
        (["export", "orders", "--sql", "select 1"], 2, "a topic and --sql exclude each other"),
        (["export", "orders", "--to", "o.xml"], 2, "o.xml: the name does not say the format (expected --format jsonl,"),
        (["export", "orders", "--format", "xml"], 2, "--format xml: is invalid"),
        (["export", "orders", "--base64"], 2, "--base64: is for CSV"),
        (["export", "--sql", "select 1", "--since", "1h"], 2, "--from and --until are for topics"),
        (["export", "orders", "--to", "no/where.csv"], 2, "there is no directory no"),
        (["export", "nothing", "--to", "n.csv"], 1, "nothing"),
        (["export", "orders", "--from", "noon"], 2, "--from: 'noon' is invalid"),
        (["import", "orders", "no.csv"], 2, "no.csv: no such file"),
        (["import", "orders", "--format", "parquet"], 2, "cannot be read from stdin"),
        (["import", "orders", "--base64"], 2, "--base64: is for CSV"),
        (["import", "nothing"], 1, "klamm topic create nothing, or import --create"),
    ],
)
def test_what_cannot_be_is_refused(cli: Cli, fill: Fill, arguments: list[str], code: int, complaint: str) -> None:
    fill(TEXT)
    assert complaint in cli(*arguments, code=code).err
    assert not Path("n.csv").exists()


@pytest.mark.parametrize(
    ("form", "content", "complaint"),
    [
        ("jsonl", b'{"value": "1"}\n{"value":\n', "line 2: is not JSON"),
        ("csv", b"value\n1\n\xff\n", "line 3: not CSV"),
        ("csv", b"value,key\n1,k\n2\n", "line 3: has fewer fields"),
        ("csv", b"value\n1\n2,3\n", "line 3: has more fields"),
        ("csv", b"value,timestamp\n1,\n2,soon\n", "line 3: timestamp is 'soon'"),
        ("csv", b"value,partition\n1,\n2,first\n", "line 3: invalid"),
        ("csv", b'value\n1\n"never ends\n', "line 3: not CSV"),
        ("csv", b'value,headers\n1,\n2,"[1"\n', "line 3: invalid"),
    ],
)
def test_what_cannot_be_read_is_told_with_its_line(
    cli: Cli,
    home: Path,
    fill: Fill,
    tmp_path: Path,
    form: str,
    content: bytes,
    complaint: str,
) -> None:
    fill([])
    (tmp_path / "in").write_bytes(content)
    told = cli("import", "copy", "in", "--format", form, code=1).err
    assert f"in: {complaint}" in told and "1 record before it was sent" in told
    assert [row[4] for row in everything(home, "copy")] == [b"1"]


def test_files_that_are_something_else(cli: Cli, fill: Fill, tmp_path: Path) -> None:
    fill([])
    (tmp_path / "text.parquet").write_text("no Parquet at all, but long enough to be")
    assert "text.parquet: not Parquet" in cli("import", "copy", "text.parquet", code=1).err
    pa.parquet.write_table(pa.table({"a": [1]}), "other.parquet")
    assert "there is no column value (it has a)" in cli("import", "copy", "other.parquet", code=1).err
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    assert "there is no column value" in cli("import", "copy", "other.csv", code=1).err
    (tmp_path / "german.csv").write_text("key;value\n1;2\n")
    assert "names the columns: 'key;value'" in cli("import", "copy", "german.csv", code=1).err


def test_a_file_of_somebody_else_needs_only_values(cli: Cli, home: Path, fill: Fill, tmp_path: Path) -> None:
    fill([])
    (tmp_path / "o.csv").write_text("id,value,key\n1,one,a\n2,two,\n")
    cli("import", "copy", "o.csv")
    pa.parquet.write_table(pa.table({"value": ["three"], "id": [3]}), "o.parquet")
    cli("import", "copy", "o.parquet")
    assert sorted((row[4], row[3]) for row in everything(home, "copy"))[0] == (b"one", b"a")
    assert {row[4] for row in everything(home, "copy")} == {b"one", b"two", b"three"}


def test_a_spreadsheets_csv_with_its_mark_and_times_as_people_write_them(
    cli: Cli, home: Path, fill: Fill, tmp_path: Path
) -> None:
    fill([])
    (tmp_path / "o.csv").write_bytes("\ufeffvalue,timestamp\r\nä,2023-11-14T22:13:20Z\r\nb,1700000000001\r\n".encode())
    cli("import", "copy", "o.csv")
    assert [(row[4], row[2]) for row in everything(home, "copy")] == [("ä".encode(), T0), (b"b", T0 + 1)]


def test_where_a_file_cannot_be_written_is_told(cli: Cli, fill: Fill, tmp_path: Path) -> None:
    fill([(None, b"x" * 1000, [], T0)] * 4000)
    (tmp_path / "folder").mkdir()
    told = cli("export", "orders", "--to", "folder", "--format", "csv", "--force", code=2).err
    assert "folder: is a directory" in told
    with small_disk(tmp_path / "full", 1 << 20):
        told = cli("export", "orders", "--to", "full/o.jsonl", code=1).err
        assert "klamm: full/o.jsonl: No space left on device" in told
        assert list((tmp_path / "full").iterdir()) == []


def test_what_is_said_to_be_sent_when_a_disk_is_full_is_there(cli: Cli, tmp_path: Path) -> None:
    with small_disk(tmp_path / "full", 3 << 20):
        path = tmp_path / "full" / "events"
        lines = b"".join(b"%01000d\n" % n for n in range(8000))
        cli("topic", "create", "orders", "--store", path)
        told = cli("send", "orders", "--store", path, "--acks", "1", stdin=lines, code=1).err
        found = re.search(r"([\d,]+) records of [\d,]+ were sent", told)
        assert found is not None, told
        assert int(found[1].replace(",", "")) == len(everything(path, "orders"))


def test_create_makes_store_and_topic(cli: Cli, home: Path, tmp_path: Path) -> None:
    (tmp_path / "o.jsonl").write_text('{"value": "v"}\n')
    cli("import", "orders", "o.jsonl", "--create")
    assert len(everything(home, "orders")) == 1


def test_an_export_ends_where_the_topic_ended_when_it_began(
    cli: Cli, fill: Fill, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = fill([(None, b"%d" % n, [], T0) for n in range(100)])

    def appending(record: klamm.Record) -> object:
        store.append("orders", b"more", partition=1, acks=1)
        return as_plain(record)

    monkeypatch.setattr("klamm.api.export.as_plain", appending)
    assert len(cli("export", "orders").rows) == 100
