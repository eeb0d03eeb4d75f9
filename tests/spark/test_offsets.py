"""Offsets as Spark keeps them, and what is planned of a real store. Without Spark."""

from __future__ import annotations

import itertools
import json
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import klamm
from klamm.errors import InvalidSetting, NotAStore, OffsetOutOfRange, UnknownTopic
from klamm.spark.offsets import OURS, Bound, StreamOffsets, TopicIdPartition, parse_offset_map
from klamm.spark.options import ReadOptions
from klamm.spark.planner import Planner, Range, shares, split
from klamm.spark.pushdown import EVERYTHING, push
from klamm.store import directory
from klamm.types import TopicId

T0 = 1_700_000_000_000


def options(store: klamm.Store, *, streaming: bool = False, **given: Any) -> ReadOptions:
    texts = {name: str(value) for name, value in given.items()}
    if "subscribePattern" not in texts and "assign" not in texts:
        texts.setdefault("subscribe", "orders")
    return ReadOptions.parse({"path": store.path} | texts, streaming=streaming)


@contextmanager
def planner(store: klamm.Store, *, streaming: bool = False, **given: Any) -> Iterator[Planner]:
    made = Planner(options(store, streaming=streaming, **given))
    try:
        yield made
    finally:
        made.close()


def planned(store: klamm.Store, **given: Any) -> list[tuple[str, int, int, int]]:
    with planner(store, **given) as made:
        return flat(made.batch())


def flat(ranges: list[Range]) -> list[tuple[str, int, int, int]]:
    return [(each.tp.topic, each.tp.partition, each.start, each.end) for each in ranges]


def fill(store: klamm.Store, count: int, partition: int = 0, topic: str = "orders", each: int = 10) -> None:
    """`count` records, `each` in a batch, a second apart."""
    start = store.topics.describe(topic).partitions[partition].end
    for first in range(start, start + count, each):
        records = [(b"k", b"v", None, T0 + 1000 * n) for n in range(first, min(first + each, start + count))]
        store.append_many(topic, records, partition=partition, acks=1)


# The text


def test_a_checkpoint_comes_back_as_it_was_and_always_in_the_same_order() -> None:
    tps = [
        TopicIdPartition("b", TopicId("id-b"), 0),
        *(TopicIdPartition("a", TopicId("id-a"), number) for number in range(12)),
    ]
    shuffled = random.Random(7).sample(tps, len(tps))
    offsets = StreamOffsets("s", dict.fromkeys(shuffled, 5))
    text = json.dumps(offsets.to_json())
    assert text == json.dumps(StreamOffsets("s", dict.fromkeys(tps, 5)).to_json())
    assert StreamOffsets.from_json(json.loads(text)) == offsets
    assert list(json.loads(text)) == ["a", "b", OURS]
    assert list(json.loads(text)["a"]) == [str(number) for number in range(12)]


def test_a_checkpoint_can_be_pasted_as_starting_offsets() -> None:
    offsets = StreamOffsets("s", {TopicIdPartition("a", TopicId("x"), 0): 5, TopicIdPartition("a", TopicId("x"), 1): 0})
    assert parse_offset_map(json.dumps(offsets.to_json(behind=3)), "startingOffsets") == {("a", 0): 5, ("a", 1): 0}


@pytest.mark.parametrize(
    "data", [{}, {"a": {"0": 5}}, {OURS: {}}, {"a": 5, OURS: {"store": "s", "topics": {"a": "x"}}}]
)
def test_a_checkpoint_of_something_else_is_told(data: dict[str, Any]) -> None:
    with pytest.raises(InvalidSetting, match="not of format klamm"):
        StreamOffsets.from_json(data)


def test_offsets_one_by_one_are_for_every_partition_and_no_other() -> None:
    bound = Bound("startingOffsets", offsets={("a", 0): 1, ("a", 1): 1})
    bound.check([("a", 0), ("a", 1)])
    with pytest.raises(InvalidSetting, match="says nothing of a/2"):
        bound.check([("a", 0), ("a", 1), ("a", 2)])
    with pytest.raises(InvalidSetting, match="names a/1, which is not"):
        bound.check([("a", 0)])


# Shares and splits


@pytest.mark.parametrize("seed", range(20))
def test_shares_use_the_limit_up_and_starve_nobody(seed: int) -> None:
    rng = random.Random(seed)
    sizes = {
        TopicIdPartition("t", TopicId("x"), number): rng.choice([0, 1, 5, 10_000])
        for number in range(rng.randint(1, 9))
    }
    limit = rng.randint(1, 12_000)
    found = shares(sizes, limit)
    assert sum(found.values()) == min(limit, sum(sizes.values()))
    assert all(0 <= found[tp] <= sizes[tp] for tp in sizes)
    if limit >= len(sizes):
        assert all(found[tp] for tp in sizes if sizes[tp])


@pytest.mark.parametrize("seed", range(20))
def test_splits_are_contiguous_and_whole_and_at_boundaries(seed: int) -> None:
    rng = random.Random(seed)
    ranges = []
    for number in range(rng.randint(1, 4)):
        start = rng.randint(0, 50)
        ranges.append(Range(TopicIdPartition("t", TopicId("x"), number), start, start + rng.randint(1, 1000)))
    at_least = rng.randint(1, 20)
    found = split(ranges, at_least, lambda _, offset: offset // 7 * 7)
    for whole in ranges:
        parts = [part for part in found if part.tp == whole.tp]
        assert (parts[0].start, parts[-1].end) == (whole.start, whole.end)
        assert all(one.end == other.start for one, other in itertools.pairwise(parts))
        assert all(part.start % 7 == 0 for part in parts[1:])


# Batches


def test_a_batch_is_everything_that_is_there(store: klamm.Store) -> None:
    store.topics.create("orders", partitions=3)
    assert planned(store) == []
    fill(store, 20, 0)
    fill(store, 5, 2)
    assert planned(store) == [("orders", 0, 0, 20), ("orders", 2, 0, 5)]
    assert planned(store, assign='{"orders": [1, 2]}') == [("orders", 2, 0, 5)]
    assert planned(store, subscribePattern="nothing.*") == []
    given = '{"orders": {"0": 3, "1": -2, "2": 5}}'
    assert planned(store, startingOffsets=given) == [("orders", 0, 3, 20)]
    given = '{"orders": {"0": 3, "1": 0, "2": -1}}'
    assert planned(store, endingOffsets=given) == [("orders", 0, 0, 3), ("orders", 2, 0, 5)]
    latest = {"startingOffsetsByTimestampStrategy": "latest"}
    timed = planned(store, startingTimestamp=T0 + 4001, endingTimestamp=T0 + 10_000, **latest)
    assert timed == [("orders", 0, 5, 10)]
    each = json.dumps({"orders": {"0": T0 + 4001, "1": T0, "2": T0 + 1000}})
    assert planned(store, startingOffsetsByTimestamp=each, **latest) == [("orders", 0, 5, 20), ("orders", 2, 1, 5)]
    assert planned(store, endingOffsetsByTimestamp=each) == [("orders", 0, 0, 5), ("orders", 2, 0, 1)]
    with pytest.raises(
        InvalidSetting, match=r"ByTimestamp: says nothing of orders/1, orders/2 .name every partition.$"
    ):
        planned(store, startingOffsetsByTimestamp=json.dumps({"orders": {"0": T0}}))


def test_a_time_after_which_there_is_no_record_is_an_error_unless_asked_for(store: klamm.Store) -> None:
    store.topics.create("orders", partitions=2)
    fill(store, 20, 0)
    said = rf"startingTimestamp: orders/1 has no record at or after {T0} .*Strategy=latest"
    with pytest.raises(OffsetOutOfRange, match=said):
        planned(store, startingTimestamp=T0)
    assert planned(store, assign='{"orders": [0]}', startingTimestamp=T0) == [("orders", 0, 0, 20)]
    assert planned(store, endingTimestamp=T0 + 10**9) == [("orders", 0, 0, 20)]  # an end needs none


def test_a_task_has_at_most_so_many_records(store: klamm.Store) -> None:
    store.topics.create("orders", partitions=2)
    fill(store, 300, 0, each=30)
    fill(store, 10, 1)
    found = planned(store, maxRecordsPerPartition=40)
    assert max(end - start for _, _, start, end in found) <= 40
    assert len(found) == 8 + 1
    assert set(contiguous(found).values()) == {(0, 300), (0, 10)}
    assert len(planned(store, maxRecordsPerPartition=1000, minPartitions=4)) >= 4


def test_offsets_that_are_not_there(store: klamm.Store) -> None:
    store.topics.create("orders")
    fill(store, 20)
    with pytest.raises(OffsetOutOfRange, match="orders/0: offsets 21 to 20 are not there; it can be read from 0 to 20"):
        planned(store, startingOffsets='{"orders": {"0": 21}}')
    with pytest.raises(OffsetOutOfRange, match="offsets 0 to 99 are not there"):
        planned(store, endingOffsets='{"orders": {"0": 99}}')
    store["orders"].delete_records({0: 10})
    with pytest.raises(OffsetOutOfRange, match="data loss: orders/0: offsets 4 to 9 are gone; the log starts at 10"):
        planned(store, startingOffsets='{"orders": {"0": 4}}')
    assert planned(store, startingOffsets='{"orders": {"0": 4}}', failOnDataLoss="false") == [("orders", 0, 10, 20)]
    with pytest.raises(UnknownTopic, match="did you mean 'orders'"):
        planned(store, subscribe="order")
    with pytest.raises(UnknownTopic, match="there is no partition 7"):
        planned(store, assign='{"orders": [7]}')


def test_what_is_planned_is_on_disk(store: klamm.Store) -> None:
    store.topics.create("orders")
    fill(store, 20)
    partition = store._acquired().topic("orders").partition(0)
    assert partition.ends().flushed < 20
    assert planned(store) == [("orders", 0, 0, 20)]
    assert partition.ends().flushed >= 20


def test_an_open_transaction_is_not_planned(store: klamm.Store) -> None:
    store.topics.create("orders")
    fill(store, 5)
    with store.transaction() as transaction:
        transaction.send("orders", b"x")
        fill(store, 5)
        stable = store._acquired().topic("orders").partition(0).ends().stable
        assert planned(store) == [("orders", 0, 0, stable)]
        end = store.topics.describe("orders").partitions[0].end
        assert planned(store, isolation="read_uncommitted") == [("orders", 0, 0, end)]
    assert planned(store)[0][3] > end


def test_min_partitions_splits_where_batches_begin(store: klamm.Store) -> None:
    store.topics.create("orders", partitions=2)
    fill(store, 300, 0, each=30)
    fill(store, 100, 1, each=30)
    found = planned(store, minPartitions=4)
    assert len(found) >= 4 and all(each[2] % 30 == 0 for each in found)
    assert set(contiguous(found).values()) == {(0, 300), (0, 100)}
    assert planned(store, minPartitions=2) == [("orders", 0, 0, 300), ("orders", 1, 0, 100)]
    assert len(planned(store, minPartitions=1000)) == 14  # no batch is split


# Filters


@dataclass(frozen=True)
class EqualTo:
    attribute: tuple[str, ...]
    value: Any


class GreaterThan(EqualTo): ...


class GreaterThanOrEqual(EqualTo): ...


class LessThan(EqualTo): ...


class LessThanOrEqual(EqualTo): ...


class In(EqualTo): ...


class IsNotNull(EqualTo): ...


def test_filters_become_part_of_the_plan(store: klamm.Store) -> None:
    store.topics.create("orders", partitions=3)
    store.topics.create("other")
    for number in range(3):
        fill(store, 100, number)
    fill(store, 100, topic="other")

    def narrowed(*filters: Any, left: int = 0) -> list[tuple[str, int, int, int]]:
        wanted, rest = push(filters)
        assert len(rest) == left
        with planner(store, subscribePattern="o.*") as made:
            return flat(made.batch(wanted))

    assert narrowed(EqualTo(("partition",), 1)) == [("orders", 1, 0, 100)]
    assert [each[1] for each in narrowed(In(("partition",), (1, 2, 9)))] == [1, 2]
    assert narrowed(GreaterThan(("partition",), 2)) == []
    assert [each[0] for each in narrowed(EqualTo(("topic",), "other"))] == ["other"]
    offsets = (GreaterThan(("offset",), 9), LessThanOrEqual(("offset",), 20), EqualTo(("topic",), "other"))
    assert narrowed(*offsets) == [("other", 0, 10, 21)]
    assert narrowed(GreaterThanOrEqual(("offset",), 100)) == []
    assert narrowed(LessThan(("offset",), 1), EqualTo(("partition",), 2)) == [("orders", 2, 0, 1)]
    some = narrowed(In(("offset",), (7, 5)), EqualTo(("partition",), 2), left=1)
    assert some == [("orders", 2, 5, 8)]
    when = datetime.fromtimestamp(T0 / 1000, UTC) + timedelta(seconds=90)
    timed = narrowed(GreaterThanOrEqual(("timestamp",), when), EqualTo(("topic",), "other"), left=1)
    assert timed == [("other", 0, 90, 100)]
    # What is not ours to decide is left to Spark, and nothing is left out.
    assert push([LessThan(("timestamp",), when), EqualTo(("value",), b"v"), EqualTo(("offset",), "7")])[0] == EVERYTHING
    assert push([IsNotNull(("offset",), None), IsNotNull(("key",), None)])[1] == [IsNotNull(("key",), None)]


def test_records_out_of_order_in_time_are_not_left_out(store: klamm.Store) -> None:
    store.topics.create("orders")
    store.append_many("orders", [(b"k", b"v", None, T0 + n) for n in (5, 1, 9, 2, 7)], acks=1)
    wanted, rest = push([GreaterThan(("timestamp",), datetime.fromtimestamp((T0 + 6) / 1000, UTC))])
    assert len(rest) == 1
    with planner(store) as made:
        assert flat(made.batch(wanted)) == [("orders", 0, 2, 5)]


# Streams


def test_a_stream_goes_on_where_it_was(store: klamm.Store) -> None:
    store.topics.create("orders", partitions=2)
    fill(store, 100, 0)
    with planner(store, streaming=True, startingOffsets="earliest") as made:
        start = made.initial()
        seen: list[tuple[str, int, int, int]] = []
        while (end := made.latest(start, 30)) != start:
            seen += flat(made.between(start, end))
            start = StreamOffsets.from_json(json.loads(json.dumps(end.to_json())))
            if len(seen) == 2:
                fill(store, 50, 1)
        assert contiguous(seen) == {("orders", 0): (0, 100), ("orders", 1): (0, 50)}
        assert made.between(start, start) == []
    with planner(store, streaming=True) as made:
        assert dict(made.initial()) == dict(start)


def contiguous(seen: list[tuple[str, int, int, int]]) -> dict[tuple[str, int], tuple[int, int]]:
    """From where to where each partition was read, if without a gap or a repetition."""
    found: dict[tuple[str, int], tuple[int, int]] = {}
    for topic, number, start, end in seen:
        first, last = found.get((topic, number), (start, start))
        assert start == last, f"{topic}/{number}: {start} follows {last}"
        found[topic, number] = (first, end)
    return found


def test_new_partitions_and_topics_start_at_0(store: klamm.Store) -> None:
    store.topics.create("o-1")
    fill(store, 10, topic="o-1")
    with planner(store, streaming=True, subscribePattern="o-.*") as made:
        start = made.initial()
        store.topics.add_partitions("o-1", 2)
        store.topics.create("o-2")
        store.topics.create("p-1")
        fill(store, 3, 1, "o-1")
        fill(store, 4, 0, "o-2")
        end = made.latest(start)
        assert flat(made.between(start, end)) == [("o-1", 1, 0, 3), ("o-2", 0, 0, 4)]
        target = dict(end)
        store.topics.create("o-3")
        fill(store, 5, 0, "o-2")
        assert made.latest(end, target=target) == end


@pytest.mark.parametrize("fail", [True, False])
def test_records_that_expired_under_a_stream(store: klamm.Store, fail: bool, caplog: pytest.LogCaptureFixture) -> None:
    store.topics.create("orders")
    fill(store, 50)
    with planner(store, streaming=True, startingOffsets="earliest", failOnDataLoss=str(fail).lower()) as made:
        start = made.initial()
        end = made.latest(start, 20)
        store["orders"].delete_records({0: 30})
        if fail:
            for call in (lambda: made.between(start, end), lambda: made.latest(start)):
                with pytest.raises(OffsetOutOfRange, match="data loss: orders/0: offsets 0 to 29 are gone"):
                    call()
            return
        assert made.between(start, end) == []
        latest = made.latest(end)
        assert flat(made.between(end, latest)) == [("orders", 0, 30, 50)]
        assert "offsets 0 to 29 are gone" in caplog.text and "failOnDataLoss is false" in caplog.text


@pytest.mark.parametrize("recreated", [True, False])
def test_a_topic_that_was_deleted_under_a_stream(store: klamm.Store, recreated: bool) -> None:
    store.topics.create("orders")
    store.topics.create("other")
    fill(store, 50)
    both: dict[str, Any] = {"streaming": True, "subscribe": "orders,other"}
    with planner(store, **both) as made, planner(store, failOnDataLoss="false", **both) as lenient:
        start = made.initial()
        store.topics.delete("orders")
        if recreated:
            store.topics.create("orders")
            fill(store, 7)
        with pytest.raises(
            UnknownTopic, match="data loss: orders: the topic was deleted" + " and re-created" * recreated
        ):
            made.latest(start)
        end = lenient.latest(start)
        assert flat(lenient.between(start, end)) == ([("orders", 0, 0, 7)] if recreated else [])
        assert lenient.latest(end) == end


def test_a_topic_that_is_deleted_while_the_planner_looks(store: klamm.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    store.topics.create("orders")
    fill(store, 5)
    with planner(store, streaming=True, startingOffsets="earliest") as made:
        start = made.initial()
        end = made.latest(start)
        here = made.tps(strict=False)
        monkeypatch.setattr(made, "tps", lambda *, strict: here)
        store.topics.delete("orders")
        with pytest.raises(UnknownTopic, match="data loss: orders: the topic was deleted; "):
            made.latest(end)
        with pytest.raises(UnknownTopic, match="data loss: orders/0: offsets 0 to 4: the topic was deleted; "):
            made.between(start, end)


def test_a_checkpoint_of_another_store_or_topic_or_ahead_of_the_log(store: klamm.Store, tmp_path: Path) -> None:
    store.topics.create("orders")
    fill(store, 10)
    with klamm.open(tmp_path / "other") as other:
        other.topics.create("orders")
        with planner(other, streaming=True) as made:
            foreign = made.initial()
    with planner(store, streaming=True) as made:
        with pytest.raises(NotAStore, match="is another store than the one that the checkpoint is of"):
            made.latest(foreign)
        store.topics.create("payments")
        with planner(store, streaming=True, subscribe="payments") as other_topic:
            for ask in (other_topic.latest, lambda start: other_topic.between(start, start)):
                with pytest.raises(InvalidSetting, match="the checkpoint is of orders, which the query does not"):
                    ask(made.initial())
        with planner(store, streaming=True, subscribe="orders,payments") as one_more:
            assert [tp.topic for tp, _ in one_more.latest(made.initial())] == ["orders", "payments"]
        (tp,) = made.initial().offsets
        with pytest.raises(OffsetOutOfRange, match="the query has come to offset 99, but the log ends at 10"):
            made.latest(StreamOffsets(made.store_id, {tp: 99}))


@pytest.mark.parametrize("new", [60, 50, 20], ids=["longer", "as long", "shorter"])
@pytest.mark.parametrize("reboots", [0, 2])
def test_a_query_notices_that_an_older_copy_of_the_store_was_put_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, new: int, reboots: int
) -> None:
    path = tmp_path / "events"
    with klamm.open(path) as store:
        store.topics.create("orders")
        fill(store, 100)
        with planner(store, streaming=True, startingOffsets="earliest") as made:
            before = made.latest(made.initial())
        store.backup(tmp_path / "backup")
    for reboot in range(reboots):  # each starts a leader epoch
        boot_id = b"%16d" % reboot
        monkeypatch.setattr(directory, "boot_id", lambda boot_id=boot_id: boot_id)
        with klamm.open(path) as store:
            assert store.topics.describe("orders").partitions[0].end == 100
    with klamm.open(path) as store:
        fill(store, 50)
        with planner(store, streaming=True) as made:
            done = made.latest(before)
            (tp,) = done.offsets
            assert dict(done) == {tp: 150}
            assert made.latest(done) == done == made.initial(), "epochs, too, of a query that begins at the latest"
    path.rename(tmp_path / "lost")
    (tmp_path / "backup").rename(path)
    later = time.time() + 60
    monkeypatch.setattr(time, "time", lambda: later)  # lives of a store differ by when they began
    with klamm.open(path) as store:
        fill(store, new)
        with planner(store, streaming=True) as made, planner(store, streaming=True, failOnDataLoss="false") as lenient:
            loss = "data loss: orders/0: the query has come to offset 150, but the log has other records from 100 on"
            for call in (lambda: made.latest(done), lambda: made.between(before, done)):
                with pytest.raises(OffsetOutOfRange, match=loss):
                    call()
            assert flat(made.between(before, made.latest(before))) == [("orders", 0, 100, 100 + new)]
            assert lenient.between(before, done) == [], "what was planned is gone"
            end = lenient.latest(done)
            assert not end.is_at(done)
            assert flat(lenient.between(done, end)) == [("orders", 0, 100, 100 + new)]
            assert lenient.latest(end) == end and made.latest(end) == end


def test_a_store_that_is_replaced_under_a_running_query_is_an_error(tmp_path: Path) -> None:
    """The query has the old files open, to which nothing is appended any more."""
    path = tmp_path / "events"
    with klamm.open(path) as store:
        store.topics.create("orders")
        store.backup(tmp_path / "backup")
        with planner(store, streaming=True, startingOffsets="earliest") as made:
            start = made.initial()
            path.rename(tmp_path / "moved")
            (tmp_path / "backup").rename(path)
            with klamm.open(path) as copy:
                fill(copy, 10)
            for call in (lambda: made.latest(start), lambda: made.between(start, start)):
                with pytest.raises(NotAStore, match="the store was replaced, or moved away, while the query ran"):
                    call()


def test_a_checkpoint_of_an_older_klamm_without_epochs_is_gone_on_with(store: klamm.Store) -> None:
    store.topics.create("orders")
    fill(store, 10)
    with planner(store, streaming=True, startingOffsets="earliest") as made:
        now = made.latest(made.initial())
        data = now.to_json()
        assert data[OURS].pop("epochs") == {"orders": {"0": 0}}
        old = StreamOffsets.from_json(data)
        assert now.is_at(old) and old.epochs == {}
        fill(store, 5)
        assert flat(made.between(old, made.latest(old))) == [("orders", 0, 10, 15)]


def test_a_micro_batch_is_done_again_with_topics_that_the_query_does_not_subscribe_to_any_more(
    store: klamm.Store,
) -> None:
    for topic in ("orders", "users"):
        store.topics.create(topic)
        fill(store, 10, topic=topic)
    with planner(store, streaming=True, subscribe="orders,users", startingOffsets="earliest") as made:
        start = made.initial()
        end = made.latest(start)
    with planner(store, streaming=True, subscribe="users") as made:
        assert flat(made.between(start, end)) == [("orders", 0, 0, 10), ("users", 0, 0, 10)]


def test_a_path_that_is_no_store(store: klamm.Store, tmp_path: Path) -> None:
    with pytest.raises(NotAStore):
        Planner(ReadOptions.parse({"path": str(tmp_path / "nowhere"), "subscribe": "a"}, streaming=False))
    assert not (tmp_path / "nowhere").exists()
