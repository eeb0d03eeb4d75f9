"""The report on a topic, with known answers; and its page, whatever the topic's names and fields are."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

import klamm
from klamm.errors import InvalidSetting, NotAStore, UnknownTopic
from tests.spark.pipelines import guide

pytest.importorskip("pyspark")

from klamm.spark.pipelines import quality_scan
from klamm.spark.pipelines.quality_report import Quality, quality

HOUR = 3_600_000
START = 1_790_000_000_000 // HOUR * HOUR
HOSTILE = '</title><script>alert("1")</script>'


class Page(HTMLParser):
    """What a browser would make of it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []
        self.text = ""
        self.feed(text)
        self.close()
        assert self.open == [], "every element is closed"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        assert not any(name.startswith("on") or "://" in (value or "") for name, value in attrs if name != "xmlns")
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def at(hour: int) -> str:
    return datetime.fromtimestamp((START + hour * HOUR) / 1000, UTC).isoformat()


def send(store: klamm.Store, hour: int, value: Any, key: bytes | None = None, partition: int = 0) -> None:
    data = value if isinstance(value, bytes) or value is None else json.dumps(value).encode()
    store.append("orders", data, key=key, partition=partition, timestamp=START + hour * HOUR + 5)


@pytest.fixture
def filled(store: klamm.Store) -> klamm.Store:
    store.topics.create("orders", 2)
    for n in range(10):
        send(store, 0, {"id": n, "user": {"name": "Ada", "a": {"b": {"c": 1}}}, "old": 1.5}, b"k%d" % (n % 4))
    for n in range(5):
        send(store, 1, {"id": str(n), "user": {"name": None}, HOSTILE: [n], "x.y": True}, b"k0", partition=1)
    send(store, 3, {"id": 7, "user": None}, None)
    send(store, 3, None, b"k9")
    send(store, 3, b"\x00\xff" * 50, b"\xff\x00", partition=1)
    send(store, 3, b'{"id": ', None, partition=1)
    send(store, 3, b' {"id": NaN}', None, partition=1)
    send(store, 3, b"17", None, partition=1)
    return store


def test_counts_and_times_are_by_partition_and_hour(spark: Any, filled: klamm.Store) -> None:
    told: list[tuple[int, int | None]] = []
    found = quality(spark, filled.path, "orders", progress=lambda *numbers: told.append(numbers))
    assert (found.topic, found.records, found.bucket, found.since) == ("orders", 21, "hour", None)
    assert found.partitions == [
        {
            "partition": 0,
            "records": 12,
            "first_offset": 0,
            "last_offset": 11,
            "first_timestamp": at(0).replace("+", ".005+"),
            "last_timestamp": at(3).replace("+", ".005+"),
            "gaps": 0,
            "missing": 0,
        },
        {
            "partition": 1,
            "records": 9,
            "first_offset": 0,
            "last_offset": 8,
            "first_timestamp": at(1).replace("+", ".005+"),
            "last_timestamp": at(3).replace("+", ".005+"),
            "gaps": 0,
            "missing": 0,
        },
    ]
    assert found.buckets == [
        {"at": at(0), "records": 10, "partitions": {"0": 10}},
        {"at": at(1), "records": 5, "partitions": {"1": 5}},
        {"at": at(3), "records": 6, "partitions": {"0": 2, "1": 4}},
    ]
    assert found.gaps == {"count": 0, "missing": 0, "largest": []}
    assert found.keys == {
        "null": 4,
        "distinct": 6,
        "repeated": 4,
        "most": [
            {"key": "k0", "records": 8},
            {"key": "k1", "records": 3},
            {"key": "k2", "records": 2},
            {"key": "k3", "records": 2},
        ],
    }
    assert found.values["tombstones"] == 1
    assert found.json == {
        "values": 20,
        "json": 16,
        "broken": 2,
        "other": 2,
        "json_share": 0.8,
        "broken_share": 0.1,
    }
    assert told == [(0, 42), (21, 42), (42, 42)]
    _fields_are_known(found)
    _page_is_whole(found)
    later = quality(spark, filled.path, "orders", since=at(2))
    assert (later.records, later.since, [each["at"] for each in later.buckets]) == (6, at(2), [at(3)])


def _fields_are_known(found: Quality) -> None:
    fields = {each["path"]: each for each in found.fields}
    assert found.fields_in_all == 8
    assert list(fields)[:2] == ["id", "user"], "the most frequent first"
    assert set(fields) == {"id", "user", "user.name", "user.a", "user.a.b", "old", HOSTILE, "`x.y`"}
    assert fields["id"]["types"] == {"integer": 11, "string": 5}
    assert fields["id"]["changes"] == [
        {"at": at(1), "before": ["integer"], "after": ["string"]},
        {"at": at(3), "before": ["string"], "after": ["integer"]},
    ]
    assert (fields["user"]["types"], fields["user"]["changes"]) == ({"object": 15, "null": 1}, [])
    assert (fields["user.name"]["types"], fields["user.name"]["changes"]) == ({"string": 10, "null": 5}, [])
    assert fields["user.a.b"]["types"] == {"object": 10}, "three deep, and no deeper"
    assert fields["old"]["types"] == {"number": 10}
    assert fields[HOSTILE]["types"] == {"array": 5} and fields["`x.y`"]["types"] == {"boolean": 5}
    seen = {path: (each["first_seen"], each["last_seen"]) for path, each in fields.items()}
    assert seen["old"] == (at(0), at(0)) and seen["id"] == (at(0), at(3)) and seen[HOSTILE] == (at(1), at(1))
    assert {path for path, each in fields.items() if each["appeared"]} == {HOSTILE, "`x.y`"}
    assert {path for path, each in fields.items() if not each["vanished"]} == {"id", "user"}
    assert fields["user.name"]["by_bucket"] == [
        {"at": at(0), "types": {"string": 10}},
        {"at": at(1), "types": {"null": 5}},
    ]


def _page_is_whole(found: Quality) -> None:
    assert json.loads(json.dumps(found.to_dict()))["records"] == 21
    rows = dict(found.rows())
    assert rows["keys"] == "6; 4 of them more than once; 4 null"
    assert rows["field id"] == (
        "changed 2026-09-21 15:00 from integer to string; changed 2026-09-21 17:00 from string to integer"
    )
    assert rows["field old"] == "vanished after 2026-09-21 14:00"
    assert "80.0 % of values; 10.0 % begin like it" in str(found)
    text = found.to_html()
    page = Page(text)
    assert page.seen.count("svg") == 4 and page.seen.count("table") == 2 and "rect" in page.seen
    assert "script" not in page.seen and "<script" not in text
    assert HOSTILE in page.text


def test_sizes_are_told_by_their_shares(spark: Any, store: klamm.Store) -> None:
    store.topics.create("orders")
    store.append_many("orders", [b"x" * n for n in range(101)])
    found = quality(spark, store.path, "orders")
    assert found.values == {
        "tombstones": 0,
        "total": 5050,
        "min": 0,
        "p50": 50.0,
        "p95": 95.0,
        "p99": 99.0,
        "max": 100,
    }
    assert found.json["other"] == 101 and found.fields == []


def test_gaps_are_what_compaction_and_transactions_left_out(spark: Any, store: klamm.Store) -> None:
    store.topics.create("orders", settings={"cleanup.policy": "compact"})
    for n in range(20):
        store.append("orders", b"%d" % n, key=b"a" if n < 5 else b"b" if 8 <= n < 11 else b"k%d" % n)
    with store.transaction() as transaction:
        transaction.send("orders", b"", key=b"t")
    store.append("orders", b"", key=b"last")
    store["orders"].compact(force=True)
    found = quality(spark, store.path, "orders")
    assert found.gaps == {
        "count": 2,
        "missing": 3,
        "largest": [{"partition": 0, "start": 8, "end": 10}, {"partition": 0, "start": 21, "end": 22}],
    }
    assert (found.partitions[0]["first_offset"], found.partitions[0]["last_offset"]) == (4, 22)
    assert (found.partitions[0]["gaps"], found.partitions[0]["missing"]) == (2, 3)
    assert found.keys["repeated"] == 0
    assert "2 gaps with 3 offsets" in Page(found.to_html()).text


def test_an_empty_topic_has_a_report_and_a_page(spark: Any, store: klamm.Store) -> None:
    store.topics.create("orders", 2)
    found = quality(spark, store.path, "orders")
    assert (found.records, found.buckets, found.fields, found.gaps["count"]) == (0, [], [], 0)
    assert found.values["max"] is None and found.json["json_share"] == 0
    assert [each["records"] for each in found.partitions] == [0, 0]
    assert dict(found.rows())["partition 1"] == "empty"
    assert "There are no values." in Page(found.to_html()).text


def test_years_are_put_together_to_fewer_buckets(spark: Any, store: klamm.Store) -> None:
    store.topics.create("orders", settings={"message.timestamp.after.max.ms": 2**62})
    for year in (0, 1, 50):
        send(store, year * 365 * 24, {"year": year})
    found = quality(spark, store.path, "orders")
    assert found.bucket == "month" and [each["records"] for each in found.buckets] == [1, 1, 1]
    assert Page(found.to_html()).seen.count("svg") == 3


def test_what_is_wrong_is_said_before_a_job_starts(store: klamm.Store, tmp_path: Path) -> None:
    spark: Any = None
    store.topics.create("orders")
    with pytest.raises(UnknownTopic, match="payments"):
        quality(spark, store.path, "payments")
    with pytest.raises(NotAStore):
        quality(spark, tmp_path, "orders")
    for since in ("yesterday", -1, True, 10**18):
        with pytest.raises(InvalidSetting, match="is not a time"):
            quality(spark, store.path, "orders", since=since)


@pytest.mark.parametrize(
    ("value", "is_json"),
    [
        (b'{"a": 1}', True),
        (b"\n [1]", True),
        (b'{"a": Infinity}', False),
        (b"{" * 100_000, False),
        (b"[" * 100_000 + b"]" * 100_000, False),
        (b'{"\xff": 1}', False),
        (b'{"a": 1} x', False),
    ],
)
def test_json_is_what_parses(value: bytes, is_json: bool) -> None:
    assert quality_scan.begins_like_json(value)
    assert (quality_scan.parsed(value) is not None) == is_json


def test_any_field_name_is_text_for_spark_and_no_longer_than_it_may_be() -> None:
    given = quality_scan.parsed(b'{"\\ud800": 1, "": {"' + b"x" * 500 + b'": null}}')
    paths = dict(quality_scan.field_types(given))
    assert next(path.encode() for path in paths) == b"\\ud800"
    assert list(paths)[1:] == ["``", "``." + "x" * 200 + "…"]


def test_the_example_of_the_guide_works(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names = guide.run("pipeline-quality.md")
    names["store"].close()
    assert names["report"].json["json_share"] == 1
    assert Page((tmp_path / "clicks.html").read_text()).seen.count("svg") == 4
