"""Pages of records: together they are all records, each once, and what was scanned is what was looked at."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import klamm
from klamm.client.consume.range_reader import read_ranges
from klamm.client.record_filter import Filter
from klamm.client.subscription import open_partitions
from klamm.console import record_search
from klamm.console.record_search import SearchResult, search
from klamm.types import TopicPartition
from klamm.where import Where

NAMES = itertools.count()


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> klamm.Store:
    return klamm.open(tmp_path_factory.mktemp("search") / "events")


def walk(
    store: klamm.Store, topic: str, count: int, start: Where | None, keep: Filter | None, budget_s: float
) -> list[SearchResult]:
    """Search page by page, until everything was looked at."""
    core = store._acquired()
    numbers = range(len(store[topic].info().partitions))
    partitions = open_partitions(core, [TopicPartition(topic, number) for number in numbers])
    pages, resume = list[SearchResult](), None
    while True:
        page = search(core, partitions, count, start=start, resume=resume, keep=keep, budget_s=budget_s)
        pages.append(page)
        assert len(page.records) <= count and len(pages) < 1000
        if page.rest is None:
            return pages
        resume = Where(str(page.rest))  # as an address has it


@given(
    places=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 50)), max_size=60),
    count=st.integers(1, 25),
    is_forward=st.booleans(),
    is_filtered=st.booleans(),
    budget_s=st.sampled_from([0.0, 10.0]),
    budget_bytes=st.sampled_from([1, 50, 1 << 20]),
    budget_offsets=st.sampled_from([1, 30, 1000]),
)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_pages_together_are_all_records_each_once(
    store: klamm.Store,
    monkeypatch: pytest.MonkeyPatch,
    places: list[tuple[int, int]],
    count: int,
    is_forward: bool,
    is_filtered: bool,
    budget_s: float,
    budget_bytes: int,
    budget_offsets: int,
) -> None:
    monkeypatch.setattr(record_search, "BUDGET_BYTES", budget_bytes)
    monkeypatch.setattr(record_search, "BUDGET_OFFSETS", budget_offsets)
    monkeypatch.setattr(record_search, "FIRST_WINDOW", 7)
    monkeypatch.setattr(record_search, "MAX_WINDOW", 20)
    topic = f"t{next(NAMES)}"
    store.topics.create(topic, partitions=3)
    for n, (partition, stamp) in enumerate(places):
        store.append(topic, b"%d" % n, key=b"k%d" % (n % 4), partition=partition, timestamp=stamp, acks=1)
    keep = Filter(key="k1") if is_filtered else None
    pages = walk(store, topic, count, Where("earliest") if is_forward else None, keep, budget_s)
    found = [record for page in pages for record in (page.records if is_forward else reversed(page.records))]
    wanted = [n for n in range(len(places)) if not is_filtered or n % 4 == 1]
    assert sorted(int(record.value) for record in found) == wanted
    for partition in range(3):
        offsets = [record.offset for record in found if record.partition == partition]
        assert offsets == sorted(offsets, reverse=not is_forward)
    scanned = [page.scanned for page in pages]
    assert scanned == sorted(scanned) and scanned[-1] == len(places)
    assert {page.total for page in pages} == {len(places)}


def test_the_last_records_are_those_of_the_latest_times(tmp_path: Path) -> None:
    with klamm.open(tmp_path) as store:
        store.topics.create("t", partitions=2)
        for n in range(100):
            store.append("t", b"%d" % n, partition=n % 2, timestamp=1000 + n, acks=1)
        (page, *_) = walk(store, "t", 10, None, None, 10)
        assert [int(record.value) for record in page.records] == list(range(90, 100))
        (page, *_) = walk(store, "t", 10, Where(("timestamp", 1040)), None, 10)
        assert [int(record.value) for record in page.records] == list(range(40, 50)) and page.total == 60


def test_a_search_without_time_left_looks_at_one_window_and_says_how_far_it_came(
    store: klamm.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_search, "FIRST_WINDOW", 100)
    topic = f"t{next(NAMES)}"
    store.topics.create(topic)
    store.append_many(topic, [(b"rare" if n == 3 else b"k", b"v") for n in range(1000)], acks=1)
    pages = walk(store, topic, 50, None, Filter(key="rare"), 0.0)
    assert [page.scanned for page in pages] == list(range(100, 1001, 100))
    assert [len(page.records) for page in pages] == [0] * 9 + [1]


def test_a_search_holds_a_bounded_number_of_offsets_and_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of many partitions it looks at few offsets each, and of large records at few: the next page goes on."""
    read: list[int] = []

    def counted(core: Any, windows: dict[TopicPartition, range]) -> Iterator[Any]:
        read.append(sum(map(len, windows.values())))
        return read_ranges(core, windows)

    monkeypatch.setattr(record_search, "read_ranges", counted)
    with klamm.open(tmp_path) as store:
        store.topics.create("t", partitions=4)
        for partition in range(4):
            store.append_many("t", [(b"k", b"v" * 1000)] * 100, partition=partition, acks=1)
        monkeypatch.setattr(record_search, "BUDGET_OFFSETS", 40)
        for start in (None, Where("earliest")):
            assert [len(page.records) for page in walk(store, "t", 100, start, None, 10)] == [40] * 10
        assert max(read) == 40
        monkeypatch.setattr(record_search, "BUDGET_OFFSETS", 1000)
        monkeypatch.setattr(record_search, "BUDGET_BYTES", 60_000)
        for start in (None, Where("earliest")):
            pages = walk(store, "t", 100, start, None, 10)
            sizes = [sum(len(record.value) for record in page.records) for page in pages]
            assert max(sizes) <= 60_000 and sum(sizes) == 400_000


def test_records_of_an_open_transaction_are_not_shown(tmp_path: Path) -> None:
    with klamm.open(tmp_path) as store:
        store.topics.create("t")
        store.append("t", b"before")
        with store.transaction(batch_bytes=1) as tx:
            tx.send("t", b"open")
            assert store["t"].info().count == 2
            (page,) = walk(store, "t", 10, None, None, 10)
            assert [record.value for record in page.records] == [b"before"]
        (page,) = walk(store, "t", 10, None, None, 10)
        assert [record.value for record in page.records] == [b"before", b"open"]
