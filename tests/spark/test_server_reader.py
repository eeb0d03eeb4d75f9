"""Planner and tasks on a store behind a server read what they read from its files, and say what was lost (no Spark)."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import klamm
from klamm.batch import walk
from klamm.errors import CorruptBatch, GroupBusy, InvalidSetting, NotAStore, OffsetOutOfRange, UnknownTopic
from klamm.log import segment
from klamm.spark import range_reader
from klamm.spark.offsets import StreamOffsets
from klamm.spark.options import ReadOptions
from klamm.spark.planner import Planner, Range
from klamm.spark.range_reader import Task, read, schema_for
from klamm.spark.server.address import ServerAddress
from klamm.spark.server.progress import ServerProgress
from klamm.spark.server.remote_store import ServerStore
from tests.crash.cases import seed_of
from tests.serving import restartable

T0 = 1_700_000_000_000
HEADERS = [("h", b"1"), ("h", None)]


@pytest.fixture
def address(store: klamm.Store) -> Iterator[str]:
    with klamm.server(store) as found:
        yield found
    range_reader.forget_store()


def options(where: str, **more: Any) -> ReadOptions:
    named = {"server": where} if not where.startswith("/") else {"path": where}
    return ReadOptions.parse(
        {"subscribe": "orders", **named, **{name: str(more[name]) for name in more}}, streaming=None
    )


def rows_of(chosen: ReadOptions, ranges: list[Range] | None = None) -> list[dict[str, Any]]:
    with closing(Planner(chosen)) as planner:
        ranges = planner.batch() if ranges is None else ranges
        store_id = planner.store_id
    found: list[dict[str, Any]] = []
    for each in ranges:
        task = Task(chosen.path, store_id, each, chosen.isolation, chosen.fail_on_data_loss, chosen.server)
        for batch in read(task, schema_for(chosen.columns)):
            found += batch.to_pylist()
    return found


def fill_with_transactions(store: klamm.Store, dice: random.Random, count: int) -> None:
    """Transactions that overlap, of which some are aborted, and plain records between them."""
    producers = [store.transaction(batch_bytes=1) for _ in range(3)]
    for n in range(count):
        which = dice.randrange(4)
        if which == 3:
            store.append("orders", b"plain %d" % n, partition=0, timestamp=T0 + dice.randrange(count), acks=1)
            continue
        producers[which].send("orders", b"%d of %d" % (n, which), partition=0, timestamp=T0 + dice.randrange(count))
        if dice.random() < 0.3:
            producers[which].commit() if dice.random() < 0.5 else producers[which].abort()
            producers[which] = store.transaction(batch_bytes=1)
    for producer in producers:
        producer.abort()


def test_every_kind_of_topic_is_read_as_from_its_files(store: klamm.Store, address: str) -> None:
    for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
        store.topics.create(f"t-{codec}", 2)
        many = [(b"k%d" % n, b"v" * n, HEADERS if n % 2 else None, T0 + n) for n in range(50)]
        store.append_many(f"t-{codec}", many, compression=codec, acks=1)
    store.topics.create("t-nulls")
    store.append_many("t-nulls", [(None, b"v", None, T0), (b"k", None, [], T0), (b"", b"", HEADERS, 0)], acks=1)
    store.topics.create("t-stamped", settings={"message.timestamp.type": "LogAppendTime"})
    store.append("t-stamped", b"now", timestamp=5, acks=1)
    store.topics.create("t-empty")
    store.topics.create("t-compacted", settings={"cleanup.policy": "compact"})
    for n in range(60):
        store.append("t-compacted", b"%d" % n, key=b"k%d" % (n % 7), acks=1)
    store["t-compacted"].compact(force=True)
    for isolation in ("read_committed", "read_uncommitted"):
        wanted = {"subscribePattern": "t-.*", "includeHeaders": "true", "isolation": isolation}
        here, there = (
            ReadOptions.parse({**named, **wanted}, streaming=False)
            for named in ({"path": store.path}, {"server": address})
        )
        assert rows_of(there) == rows_of(here)
    assert len(rows_of(there)) == 5 * 50 + 3 + 1 + 7


def test_aborted_records_are_left_out_wherever_a_fetch_begins_and_ends(store: klamm.Store, address: str) -> None:
    dice = random.Random(seed_of())
    store.topics.create("orders")
    fill_with_transactions(store, dice, 150)
    log = store._acquired().topic("orders").partition(0)
    there = ServerStore(options(address).server or pytest.fail("no server"))
    partition = there.topic("orders").partition(0)
    ends = partition.ends()
    assert (ends.start, ends.end, ends.stable) == (log.ends().start, log.ends().end, log.ends().stable)
    for committed in (True, False):
        with log.reader(0, committed=committed) as local:
            wanted = [batch.base_offset for batch in pieces(local) if not batch.is_control]
        for size in (1, 100, 500, 1 << 20):
            with partition.reader(0, committed=committed) as reader:
                assert [batch.base_offset for batch in pieces(reader, size) if not batch.is_control] == wanted
        for offset in range(0, ends.end, 7):
            with partition.reader(offset, committed=committed) as reader:
                found = [batch.base_offset for batch in pieces(reader, 200) if not batch.is_control]
            assert found == [base for base in wanted if base >= offset], offset
    for time_ms in range(T0 - 1, T0 + 152, 5):
        assert partition.offset_at(time_ms) == log.offset_at(time_ms), time_ms
    assert partition.offset_at(T0 + 1000) is None
    there.close()
    assert rows_of(options(address)) == rows_of(options(store.path))
    there_too = options(address, startingTimestamp=T0 + 40, isolation="read_uncommitted")
    assert rows_of(there_too) == rows_of(options(store.path, startingTimestamp=T0 + 40, isolation="read_uncommitted"))


def pieces(reader: Any, size: int = 1 << 20) -> Iterator[Any]:
    while data := reader.read(size):
        yield from walk(data)


def test_plans_are_those_of_the_files_and_a_checkpoint_goes_from_one_to_the_other(
    store: klamm.Store, address: str
) -> None:
    store.topics.create("orders", 3)
    store.append_many("orders", [(b"u%d" % (n % 50), b"%d" % n) for n in range(400)])
    here, there = Planner(options(store.path)), Planner(options(address))
    with closing(here), closing(there):
        assert there.store_id == here.store_id
        assert there.initial() == here.initial()
        for limit in (None, 7, 100):
            assert there.latest(here.initial(), limit) == here.latest(there.initial(), limit)
        begin, end = here.latest(here.initial(), 100), there.latest(there.initial())
        assert there.between(begin, end) == here.between(begin, end)
        assert rows_of(options(address), there.between(begin, end)) == rows_of(
            options(store.path), there.between(begin, end)
        )
        split = Planner(options(address, minPartitions=9))
        with closing(split):
            assert sum(each.end - each.start for each in split.batch()) == 400
            assert len(split.batch()) >= 3
        with pytest.raises(OffsetOutOfRange, match="offsets 0 to 9999 are not there"):
            rows_of(options(address, endingOffsets='{"orders": {"0": 9999, "1": -1, "2": -1}}'))
        with pytest.raises(UnknownTopic, match=r"'order' does not exist .did you mean 'orders'"):
            rows_of(options(address, subscribe="order"))


def test_records_that_are_gone_are_an_error_or_passed_over(store: klamm.Store, address: str) -> None:
    store.topics.create("orders")
    for n in range(20):
        store.append("orders", b"%d" % n, acks=1)
    chosen = options(address, failOnDataLoss="false")
    with closing(Planner(options(address))) as planner, closing(Planner(chosen)) as lenient:
        (tp,) = planner.tps(strict=True)
        start, end = StreamOffsets(planner.store_id, {tp: 3}), StreamOffsets(planner.store_id, {tp: 20})
        planned = planner.between(start, end)
        store["orders"].delete_records({0: 10})
        with pytest.raises(
            OffsetOutOfRange, match="data loss: orders/0: offsets 3 to 9 are gone; the log starts at 10"
        ):
            planner.between(start, end)
        assert lenient.between(start, end) == [Range(tp, 10, 20)]
    with pytest.raises(OffsetOutOfRange, match="data loss: orders/0: offsets 3 to 9 are gone"):
        rows_of(options(address), planned)
    assert [row["offset"] for row in rows_of(chosen, planned)] == list(range(10, 20))


def test_a_topic_that_was_re_created_is_not_read_in_the_place_of_the_first(store: klamm.Store, address: str) -> None:
    store.topics.create("orders")
    store.append_many("orders", [(None, b"first")] * 5)
    with closing(Planner(options(address))) as planner:
        ranges = planner.batch()
    store.topics.delete("orders")
    store.topics.create("orders")
    for _ in range(5):
        store.append("orders", b"second")
    with pytest.raises(UnknownTopic, match=r"data loss: orders/0: offsets 0 to 4 are gone; .*deleted and re-created"):
        rows_of(options(address), ranges)
    assert rows_of(options(address, failOnDataLoss="false"), ranges) == []
    # Also when it happens while a task reads: the fetch names the id.
    there = ServerStore(ServerAddress.parse({"server": address}))
    partition = there.topic("orders").partition(0)
    with partition.reader(0) as reader:
        assert reader.read(1)
        store.topics.delete("orders")
        with pytest.raises(UnknownTopic, match="orders: the topic was deleted"):
            list(pieces(reader, 1))
    there.close()


def test_bytes_that_were_damaged_are_an_error_and_never_records(store: klamm.Store, address: str) -> None:
    store.topics.create("orders")
    for n in range(10):
        store.append("orders", b"value-%d" % n)
    partition = store._acquired().topic("orders").partition(0)
    with open(segment.path_of(partition.directory, 0), "r+b") as file:
        data = file.read()
        file.seek(data.index(b"value-5"))
        file.write(b"VALUE")
    with pytest.raises(CorruptBatch, match=rf"klamm://{address}: orders/0: offset 5?.*CRC"):
        rows_of(options(address))


def test_a_log_with_other_records_from_an_epoch_on_is_data_loss(tmp_path: Path) -> None:
    path, copy = tmp_path / "events", tmp_path / "copy"
    with klamm.open(path) as store:
        store.topics.create("orders")
        store.append_many("orders", [(None, b"old %d" % n) for n in range(10)])
        store.backup(copy)
        store.append_many("orders", [(None, b"lost %d" % n) for n in range(10)])
        with klamm.server(store) as address, closing(Planner(options(address))) as planner:
            seen = planner.latest(planner.initial())
    shutil.rmtree(path)
    shutil.copytree(copy, path)
    with klamm.open(path) as store:
        store.append_many("orders", [(None, b"new %d" % n) for n in range(30)])
        outcomes = []
        with klamm.server(store) as address:
            for where in (store.path, address):
                with closing(Planner(options(where))) as planner:
                    assert planner.store_id == seen.store_id
                    with pytest.raises(OffsetOutOfRange, match="has other records from 10 on") as lost:
                        planner.latest(seen)
                    outcomes.append(lost.value.message)
                with closing(Planner(options(where, failOnDataLoss="false"))) as planner:
                    end = planner.latest(seen)
                    outcomes.append(str(planner.between(seen, end)))
        assert outcomes[:2] == outcomes[2:]


def test_a_server_that_is_killed_and_started_again_is_a_pause(path: Path) -> None:
    with klamm.open(path) as store:
        store.topics.create("orders")
        for n in range(200):
            store.append("orders", b"%d" % n, acks=1)
        with restartable(path) as server:
            chosen = options(server.address)
            there = ServerStore(chosen.server or pytest.fail("no server"))
            with there.topic("orders").partition(0).reader(0) as reader:
                found = [batch.base_offset for batch in walk(reader.read(500))]
                server.kill()
                server.begin()  # and it does not listen yet
                found += [batch.base_offset for batch in pieces(reader, 5000)]
            assert found == list(range(200))
            assert there.is_in_place()
            there.close()


def test_a_server_of_another_store_is_refused(store: klamm.Store, address: str, tmp_path: Path) -> None:
    store.topics.create("orders")
    store.append("orders", b"1")
    with closing(Planner(options(address))) as planner:
        seen, ranges = planner.latest(planner.initial()), planner.batch()
    with klamm.open(tmp_path / "other") as other, klamm.server(other) as elsewhere:
        other.topics.create("orders")
        other.append("orders", b"2")
        with closing(Planner(options(elsewhere))) as planner, pytest.raises(NotAStore, match="is another store"):
            planner.latest(seen)
        chosen = options(elsewhere)
        task = Task(chosen.path, seen.store_id, ranges[0], "read_committed", True, chosen.server)
        with pytest.raises(NotAStore, match="serves another store"):
            list(read(task, schema_for(chosen.columns)))


def test_a_group_follows_a_query_and_must_have_no_members(store: klamm.Store, address: str) -> None:
    store.topics.create("orders", 2)
    store.append_many("orders", [(b"u%d" % (n % 50), b"%d" % n) for n in range(100)])
    with closing(Planner(options(address))) as planner:
        assert planner.server is not None
        progress = ServerProgress(planner.server.client, "lag")
        end = planner.latest(planner.initial())
        progress.note(end)
        positions = {tp.partition: offset for tp, offset in end}
        followed = store.groups.describe("lag").offsets
        assert {each.partition: each.committed and each.committed.offset for each in followed} == positions
        pytest.importorskip("confluent_kafka")
        from confluent_kafka import Consumer

        member = Consumer({"bootstrap.servers": address, "group.id": "busy", "auto.offset.reset": "earliest"})
        member.subscribe(["orders"])
        try:
            while not member.consume(1, 1):
                pass
            with pytest.raises(GroupBusy, match="group 'busy' has 1 members"):
                ServerProgress(planner.server.client, "busy")
        finally:
            member.close()


def test_a_store_is_named_once_and_security_is_for_servers() -> None:
    for given, sentence in (
        ({"path": "/a", "server": "h:1"}, "path and server are both given"),
        ({"path": "/a", "sasl.username": "u"}, "sasl.username: is for a server"),
        ({"path": "klamm://"}, "server: is empty"),
        ({"path": "kafka://h:1"}, "is not a directory"),
        ({}, "the option path is missing"),
    ):
        with pytest.raises(InvalidSetting, match=sentence):
            ReadOptions.parse({"subscribe": "orders", **given}, streaming=None)
    chosen = ReadOptions.parse({"subscribe": "orders", "path": "klamm://h:1,i:2/"}, streaming=None)
    assert chosen.server is not None and chosen.server.hosts == (("h", 1), ("i", 2))
    assert chosen.path == "klamm://h:1,i:2"
