"""Recipes of attacks on a server, each as a whole: what a client that knows the weak points of a Kafka server sends.

    false max_timestamp          test_timestamps.py: test_a_false_max_timestamp_neither_deletes_acknowledged_…
    copied store                 here
    seeks                        test_loop.py: test_seeks_and_clients_that_catch_up_read_no_file_on_the_loop
    responses of gigabytes       here (groups); test_bounds.py: test_configs_are_described_once_however_often_…
    large members                test_bounds.py: test_joins_of_megabytes_are_not_retained,
                                 test_what_all_groups_hold_is_bounded
    long requests                test_bounds.py: test_a_fetch_that_names_one_partition_60_000_times_…;
                                 test_connection.py: test_one_who_sends_thousands_…; here (batches)
    bombs                        test_loop.py: test_decompression_and_cold_reads_do_not_delay_the_catalog;
                                 test_bounds.py: test_a_batch_is_not_decompressed_as_a_whole
    records that are not read    here
    producer ids                 here; tests/log/test_producer_table.py
    short-lived topics           here; tests/store/test_slots.py
    ends of segments, min_bytes  test_fetch.py: test_a_fetch_does_not_wait_at_the_end_of_a_segment_…,
                                 test_a_fetch_that_wants_more_than_it_may_get_…
    aborted transactions         test_fetch.py: test_aborted_transactions_are_listed_for_the_records_that_are_sent_…
    transactions beside commits  here
    changes of the catalog       test_loop.py: test_what_names_no_new_topic_does_not_wait_for_the_catalog

All at once, beside honest clients: test_hostile_load.py.
"""

from __future__ import annotations

import random
import re
import shutil
import sys
import threading
from contextlib import ExitStack
from pathlib import Path

import pytest

import klamm
from klamm.kafka.error_codes import ErrorCode as E
from klamm.kafka.wire.frames import read_response
from klamm.kafka.wire.messages import (
    API_VERSIONS,
    CREATE_TOPICS,
    DELETE_TOPICS,
    DESCRIBE_GROUPS,
    FETCH,
    JOIN_GROUP,
    PRODUCE,
    SYNC_GROUP,
)
from tests.kafka import waits
from tests.kafka.attacks import Sizes, connected, transactions
from tests.kafka.connect import Raw, Served, served
from tests.kafka.member import Client
from tests.kafka.requests import FetchFrom, fetch, fetching, offsets, produce, producing, sealed
from tests.procs import Flag, until
from tests.serving import serving

MIB = 1 << 20
TESTS = Path(__file__).parent


def test_the_table_above_names_tests_that_there_are() -> None:
    files = {name: (TESTS / name).read_text() for name in re.findall(r"^ .*\b(test_\w+\.py):", str(__doc__), re.M)}
    assert files
    names = re.findall(r"\b(test_[a-z0-9_]+)(?![a-z0-9_]*\.py)", str(__doc__))
    assert [name for name in names if not any(f"def {name}" in text for text in files.values())] == []


def test_a_copied_store_is_searched_by_its_indexes(disk_path: Path) -> None:
    """A plain copy has other inodes: its indexes count all the same, and no seek of a client walks a segment."""
    with klamm.open(disk_path / "original") as store:
        store.topics.create("orders", 1, {"segment.bytes": 4 * MIB})
        for number in range(60_000):
            store.append("orders", b"%20d" % number, acks=1)
    shutil.copytree(disk_path / "original", disk_path / "events")
    watched, seen = Flag(disk_path / "watched"), disk_path / "seen"
    seen.touch()
    environment = waits.watch(watched, seen, reads_of="/topics/")
    with serving(disk_path / "events", environment=environment) as process, Raw(process.address) as raw:
        fetch(raw, "orders", 0)
        watched.up()
        for offset in range(100, 60_000, 997):
            assert offsets(fetch(raw, "orders", offset, partition_max_bytes=2000))[0] == offset
        watched.down()
        assert seen.read_text() == ""


def test_a_group_that_is_described_again_and_again_is_one_response(tmp_path: Path) -> None:
    """A member with 3 MB of metadata, named 25 times by clients that do not read: the server holds it a few times."""
    with served(tmp_path / "events", queued_max_response_bytes=8 * MIB) as server, server.dial() as raw:
        protocol = JOIN_GROUP.request.Protocol(name="range", metadata=bytes(3 * MIB))
        fields = {"group_id": "g", "session_timeout_ms": 1_800_000, "rebalance_timeout_ms": 1000}
        joined = raw.ask(JOIN_GROUP, 3, **fields, protocol_type="consumer", protocols=[protocol])
        member = {"group_id": "g", "member_id": joined.member_id, "generation_id": joined.generation_id}
        given = SYNC_GROUP.request.Assignment(member_id=joined.member_id, assignment=bytes(MIB))
        assert raw.ask(SYNC_GROUP, 2, **member, assignments=[given]).error_code == 0
        number = raw.send(DESCRIBE_GROUPS, 3, groups=["g"] * 25)
        frame = raw.receive()
        assert int.from_bytes(frame[:4], "big") == number and 4 * MIB < len(frame) < 5 * MIB
        unread = server.server.listener.unread_bytes
        with connected(server.address, 6, deaf=True) as clients:
            for client in clients:
                client.send(DESCRIBE_GROUPS, 3, groups=["g"] * 25)
            until(lambda: server.call(lambda: len(server.server.listener.connections)) < 7, "the oldest is closed")
            assert server.call(lambda: unread.used) <= 8 * MIB
            assert raw.ask(API_VERSIONS, 0).error_code == 0


def test_a_batch_of_millions_of_empty_records_is_refused_for_its_size(server: Served, raw: Raw) -> None:
    """Before its records are walked, and its checksum: both take time with the size."""
    assert produce(raw, "orders", sealed([b""] * 1_000_000)).error_code == E.MESSAGE_TOO_LARGE
    assert produce(raw, "orders", sealed(1)).error_code == E.NONE


@pytest.mark.skipif(sys.platform != "linux", reason="prlimit")
def test_clients_that_do_not_read_leave_descriptors_to_the_others(tmp_path: Path) -> None:
    """Each wants a record of every partition, and reads none."""
    count = 400
    with klamm.open(tmp_path / "events") as store:
        store.topics.create("wide", count)
        for number in range(count):
            store.append("wide", bytes(40_000), partition=number, acks=1)
    places: dict[tuple[str, int], FetchFrom | int] = {("wide", number): FetchFrom(0, MIB) for number in range(count)}
    with serving(tmp_path / "events", open_files=600) as process, Raw(process.address) as raw, ExitStack() as stack:
        raw.create("orders", 4)
        for _ in range(4):
            (deaf,) = stack.enter_context(connected(process.address, 1, deaf=True))
            deaf.send(FETCH, 12, **fetching(places, max_bytes=2**31 - 1))
            assert raw.ask(API_VERSIONS, 0).error_code == 0
            for number in range(4):
                assert produce(raw, "orders", sealed(1), number, acks=-1).error_code == 0
            with Raw(process.address) as another:
                assert another.ask(API_VERSIONS, 0).error_code == 0
        assert len(list(Path(f"/proc/{process.pid}/fd").iterdir())) < 500
        assert process.stderr.count("\n") < 20, process.stderr


def test_thousands_of_producer_ids_are_taken_and_their_first_batches_remembered(server: Served, raw: Raw) -> None:
    count, first = 3000, 1_000_000

    def batch(number: int) -> bytearray:
        return sealed(1, producer_id=first + number, producer_epoch=0, base_sequence=0)

    for number in range(count):
        raw.send(PRODUCE, 9, **producing({("orders", 0): batch(number)}))
    responses = [read_response(PRODUCE, 9, raw.receive())[1] for _ in range(count)]
    made = [response.responses[0].partition_responses[0] for response in responses]
    assert [each.error_code for each in made] == [E.NONE] * count
    assert [each.base_offset for each in made] == list(range(count))
    for number in (0, 1, count // 2, count - 1):
        assert produce(raw, "orders", batch(number)).base_offset == number, "sent again: it is there already"


def test_topics_that_come_and_go_use_nothing_up(tmp_path: Path) -> None:
    """The slots of a deleted topic are used again, so that `heads` does not grow with each that ever was."""
    partitions, rounds = 500, 8
    topic = CREATE_TOPICS.request.Topic(name="t", num_partitions=partitions, replication_factor=1)
    with served(tmp_path / "events", log_cleaner_backoff_ms=100) as server, server.dial() as raw:
        sizes = []
        for _ in range(rounds):
            (made,) = raw.ask(CREATE_TOPICS, 5, topics=[topic], timeout_ms=30_000, validate_only=False).topics
            assert made.error_code == E.NONE
            (gone,) = raw.ask(DELETE_TOPICS, 3, topic_names=["t"], timeout_ms=30_000).responses
            assert gone.error_code == E.NONE
            server.run(server.server.run_due_work())
            sizes.append((tmp_path / "events" / "heads").stat().st_size)
        assert sizes[-1] <= 3 * sizes[0], sizes


def test_transactions_of_many_clients_and_commits_beside_them_all_end(store: klamm.Store, server: Served) -> None:
    store.topics.create("transactions", 1)
    errors: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for _ in range(4):
                transactions(server.address, random.Random(number), Sizes())
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    with Client(server.address) as client:
        for offset in range(40):
            assert client.commit({("orders", 0): offset}) == [0]
        assert client.offsets() == {("orders", 0): 39}
    for thread in threads:
        thread.join()
    assert errors == []
    server.run(server.server.run_due_work())
    assert store.check().breaches == []
