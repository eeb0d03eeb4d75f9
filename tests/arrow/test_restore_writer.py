"""Rows that have offsets -> a log where each has its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import klamm
from klamm.arrow.restore_writer import RestoreWriter
from klamm.errors import LogError, RecordTooLarge
from klamm.log.partition import Partition
from klamm.store.directory import acquire, release
from tests.arrow.test_append_table import HEADERS, records

FAR = (1 << 31) + 5


def rows(*offsets: int, size: int = 0) -> pa.RecordBatch:
    return pa.record_batch(
        {
            "key": pa.array([b"k%d" % each if each % 3 else None for each in offsets], pa.binary()),
            "value": pa.array([b"%d" % each + bytes(size) if each % 5 else None for each in offsets], pa.binary()),
            "headers": pa.array([[{"key": "h", "value": b"%d" % each}] * (each % 2) for each in offsets], HEADERS),
            "timestamp": pa.array([each % 10**9 for each in offsets], pa.timestamp("ms", "UTC")),
            "offset": pa.array(offsets, pa.int64()),
        }
    )


def seen(store: klamm.Store, topic: str = "t") -> list[tuple[Any, ...]]:
    found = records(store, topic).get(0, [])
    return [(each.offset, each.key, each.value, each.headers, each.timestamp) for each in found]


def wanted(*offsets: int, size: int = 0) -> list[tuple[Any, ...]]:
    return [
        (
            each,
            b"k%d" % each if each % 3 else None,
            b"%d" % each + bytes(size) if each % 5 else None,
            (("h", b"%d" % each),) * (each % 2),
            each % 10**9,
        )
        for each in offsets
    ]


@contextmanager
def log_of(store: klamm.Store, topic: str = "t") -> Iterator[Partition]:
    core = acquire(store.path, read_only=False, create=False, force_filesystem=False)
    try:
        yield core.topic(topic).partition(0)
    finally:
        release(core)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30, deadline=None)
@given(
    st.lists(st.integers(1, 4) | st.integers(1, 9000) | st.just(FAR), min_size=1, max_size=60),
    st.integers(0, 60),
    st.integers(1, 20),
    st.sampled_from([0, 300]),
)
def test_each_row_gets_its_offset_though_the_filling_is_stopped_and_begun_again(
    store: klamm.Store, gaps: list[int], stop: int, chunk: int, size: int
) -> None:
    topic = f"t{len(store.topics)}"
    store.topics.create(topic, 1, {"max.message.bytes": 1000, "segment.bytes": 4000, "retention.ms": -1})
    offsets = [sum(gaps[: n + 1]) for n in range(len(gaps))]
    with log_of(store, topic) as log:
        for end_offset in (stop, len(offsets)):
            placer = RestoreWriter(log)
            before = placer.next_offset
            for start in range(0, end_offset, chunk):
                placer.take(rows(*offsets[start : min(start + chunk, end_offset)], size=size))
            placer.give()
            assert placer.rows == sum(before <= each for each in offsets[:end_offset])
            assert (
                log.ends().end
                == placer.next_offset
                == max([0, *(each + 1 for each in offsets[: max(stop, end_offset)])])
            )
        placer.skip_to(offsets[-1] + 10)
        assert log.ends()[:3] == (0, offsets[-1] + 10, offsets[-1] + 10)
    assert seen(store, topic) == wanted(*offsets, size=size)


def test_a_log_with_gaps_is_a_log(store: klamm.Store, tmp_path: Path) -> None:
    store.topics.create("t", 1, {"segment.records": 2000, "index.interval.bytes": 100, "retention.ms": -1})
    offsets = [*range(7, 3000, 3), 3000 + FAR, 3001 + FAR]
    with log_of(store) as log:
        placer = RestoreWriter(log)
        placer.skip_to(7)
        placer.take(rows(*offsets))
        placer.skip_to(4000 + FAR)
        assert log.cleanup.delete_before(7) == 7
        log.sync(4000 + FAR)
    store.append("t", b"goes on", key=b"k")
    want = wanted(*offsets)
    assert seen(store)[:-1] == want
    assert seen(store)[-1][0] == 4000 + FAR
    table = pa.table(store.scan("t", columns=["offset"]))
    assert table["offset"].to_pylist() == [*offsets, 4000 + FAR]
    assert store.check().ok
    assert store["t"].offset_at(0, 2999) == 3000 + FAR  # the one behind the gap has a later time
    store.backup(tmp_path / "copy")  # which opens by recovery
    with klamm.open(tmp_path / "copy") as copy:
        assert seen(copy) == seen(store)
        assert copy.check().ok
        assert copy.topics.describe("t").partitions[0].start == 7


def test_a_batch_goes_to_its_own_offset_or_nowhere(store: klamm.Store) -> None:
    store.topics.create("t", 1)
    with log_of(store) as log:
        placer = RestoreWriter(log)
        placer.take(rows(0, 1, 2))
        store.append("t", b"somebody else's")
        with pytest.raises(LogError, match="t/0: the log ends at offset 1: another process has appended"):
            placer.give()
        assert log.ends().end == 1
        with pytest.raises(RecordTooLarge, match=r"t/0: a record of .* max\.message\.bytes"):
            RestoreWriter(log).take(rows(1, 2, size=2 << 20))
