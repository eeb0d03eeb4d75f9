"""`klamm copy`: what is in the target is what is in the source, wherever either is and whatever is killed."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import klamm
from klamm.cli.main import run
from klamm.console.history import HISTORY_TOPIC
from klamm.errors import (
    InvalidSetting,
    LogError,
    OffsetOutOfRange,
    StoreError,
    UnknownTopic,
)
from klamm.transfer.chunk import Chunk
from klamm.transfer.copier import _Copy
from klamm.transfer.directory_source import DirectorySource
from klamm.transfer.directory_target import DirectoryTarget
from klamm.transfer.rewind import RewindNeeded
from tests.crash.cases import seed_of
from tests.procs import until
from tests.rig import dies, killed_at
from tests.serving import KLAMM, Serving, restartable
from tests.transfer.conftest import ORDERS, committed, contents, contents_at

# ---- into a directory


def test_a_directory_has_the_records_offsets_settings_and_groups_of_the_source(
    source: klamm.Store, tmp_path: Path
) -> None:
    report = klamm.copy(source, tmp_path / "target")
    assert report.offsets == sum(part.end for part in source["orders"].info().partitions)
    assert report.groups == ["billing"] and report.busy_groups == []
    with klamm.open(tmp_path / "target") as target:
        assert contents(target) == contents(source)
        assert not any(b"abort" in (record[3] or b"") for part in contents(target).values() for record in part)
        assert target["orders"].info().settings == source["orders"].info().settings
        assert [part.end for part in target["orders"].info().partitions] == [
            part.end for part in source["orders"].info().partitions
        ]
        assert list(target) == ["empty", "orders"] and len(target["empty"].info().partitions) == 3
        assert committed(target) == committed(source)
        assert target.check().breaches == []


def test_a_copy_that_is_run_again_goes_on_where_it_was(source: klamm.Store, tmp_path: Path) -> None:
    klamm.copy(source, tmp_path / "target")
    assert klamm.copy(source, tmp_path / "target").offsets == 0
    source["orders"].append_many([(b"k%d" % n, b"more %d" % n) for n in range(100)])
    source["orders"].add_partitions(3)
    source["orders"].append(b"in a new one", partition=2)
    assert klamm.copy(source, tmp_path / "target").offsets == 101
    assert contents_at(tmp_path / "target") == contents(source)


def test_a_copy_ends_in_front_of_an_open_transaction(source: klamm.Store, tmp_path: Path) -> None:
    expected = contents(source)
    with source.transaction(batch_bytes=1024) as tx:
        tx.send("orders", bytes(5000), partition=0)  # more than a batch: it is in the log at once
        source["orders"].append(b"behind it", partition=0)
        klamm.copy(source, tmp_path / "target")
        assert contents_at(tmp_path / "target") == expected
    klamm.copy(source, tmp_path / "target")
    assert contents_at(tmp_path / "target") == contents(source)


def test_times_of_the_append_are_kept(tmp_path: Path) -> None:
    with klamm.open(tmp_path / "source") as source:
        source.topics.create("orders", settings={"message.timestamp.type": "LogAppendTime"})
        source["orders"].append(b"a", timestamp=1)
        klamm.testing.advance(source, seconds=100)
        klamm.copy(source, tmp_path / "target")
        assert contents_at(tmp_path / "target") == contents(source)


def test_what_retention_and_compaction_left_is_copied_with_its_gaps(tmp_path: Path) -> None:
    settings: dict[str, str | int] = {
        "cleanup.policy": "compact",
        "segment.bytes": 1024,
        "min.cleanable.dirty.ratio": 0,
    }
    with klamm.open(tmp_path / "source") as source:
        topic = source.topics.create("orders", 1, settings)
        for number in range(300):
            topic.append(b"%d" % number, key=b"%d" % (number % 7), acks=1)
        topic.compact(force=True)
        topic.append(b"last", key=b"0")
        topic.delete_records({0: 297})
        klamm.copy(source, tmp_path / "target")
        with klamm.open(tmp_path / "target") as target:
            assert contents(target) == contents(source)
            (part,) = target["orders"].info().partitions
            assert (part.start, part.end) == (297, 301)
            assert target.check().breaches == []


@pytest.mark.parametrize("since", ["@20", "last 5", "1h", {("orders", 0): 3}])
def test_a_copy_may_begin_later(since: Any, source: klamm.Store, tmp_path: Path) -> None:
    klamm.copy(source, tmp_path / "target", topics="orders", since=since)
    with klamm.open(tmp_path / "target") as target, source["orders"].consumer(start=since, wait=0) as expected:
        assert sorted(expected, key=lambda record: (record.partition, record.offset)) == sorted(
            target["orders"].consumer(start="earliest", wait=0), key=lambda record: (record.partition, record.offset)
        )
        assert list(target) == ["orders"]
    assert klamm.copy(source, tmp_path / "target", topics="orders").offsets == 0


def test_a_target_that_is_not_a_copy_is_left_as_it_is(source: klamm.Store, tmp_path: Path) -> None:
    klamm.copy(source, tmp_path / "target")
    with klamm.open(tmp_path / "target") as target:
        target["orders"].append(b"its own", partition=1)
        before = contents(target)
        with pytest.raises(LogError, match="not a copy of"):
            klamm.copy(source, target)
        source["orders"].append(b"another one", partition=1)
        with pytest.raises(LogError, match="has other records"):
            klamm.copy(source, target)
        assert contents(target) == before
        target.topics.add_partitions("empty", 4)
        with pytest.raises(InvalidSetting, match="has 4 partitions, and 3 in the source"):
            klamm.copy(source, target)


def test_a_gap_that_retention_left_is_an_error_until_it_is_accepted(source: klamm.Store, tmp_path: Path) -> None:
    klamm.copy(source, tmp_path / "target")
    end = source["orders"].info().partitions[0].end
    source["orders"].append_many([b"%d" % n for n in range(20)], partition=0)
    source["orders"].delete_records({0: end + 5})
    with pytest.raises(OffsetOutOfRange, match=f"begins at {end + 5}, and the copy has come to {end}"):
        klamm.copy(source, tmp_path / "target")
    klamm.copy(source, tmp_path / "target", since="earliest")
    assert contents_at(tmp_path / "target")[0][-15:] == contents(source)[0]


def test_groups_are_moved_forward_only_and_never_under_their_members(source: klamm.Store, tmp_path: Path) -> None:
    with klamm.open(tmp_path / "target") as target:
        klamm.copy(source, target)
        target.groups.reset("billing", to={("orders", 0): 50})
        assert klamm.copy(source, target).groups == []
        assert committed(target)[0] == 50
        source.groups.reset("billing", to={("orders", 0): 60})
        with target["orders"].consumer(group="billing", wait=0) as member:
            member.poll()
            assert klamm.copy(source, target).busy_groups == ["billing"]
        assert klamm.copy(source, target, groups=False).groups == [] and committed(target)[0] == 50
        assert klamm.copy(source, target).groups == ["billing"] and committed(target)[0] == 60


def test_what_cannot_be_copied_is_said(source: klamm.Store, tmp_path: Path) -> None:
    with pytest.raises(UnknownTopic, match="Topic 'order' does not exist"):
        klamm.copy(source, tmp_path / "target", topics=["orders", "order"])
    with pytest.raises(InvalidSetting, match="the list of topics is empty"):
        klamm.copy(source, tmp_path / "target", topics=[])
    with pytest.raises(InvalidSetting, match="no server is named"):
        klamm.copy(source, "kafka://")
    with pytest.raises(InvalidSetting, match=r"group\.id: cannot be set"):
        klamm.copy("kafka://127.0.0.1:1?group.id=x", tmp_path / "target")
    with pytest.raises(InvalidSetting, match="No such configuration property"):
        klamm.copy("kafka://127.0.0.1:1?sasl.passwort=x", tmp_path / "target")
    with pytest.raises(StoreError):
        klamm.copy(tmp_path / "none", tmp_path / "target")


@pytest.mark.parametrize("stride", [pytest.param(1, marks=pytest.mark.soak), 60])
def test_a_copy_killed_at_any_step_is_finished_by_the_next_one(
    stride: int, source: klamm.Store, tmp_path: Path
) -> None:
    expected = contents(source)
    path = source.path
    source.close()
    step, deaths = 1 + seed_of() % stride, 0
    while True:
        target = tmp_path / f"target-{step}"
        died = dies(killed_at(step, lambda target=target: klamm.copy(path, target)))  # type: ignore[misc]
        klamm.copy(path, target)
        with klamm.open(target) as copied:
            assert contents(copied) == expected, f"killed at step {step}"
            assert copied.check().breaches == []
        if not died:
            break
        deaths += 1
        step += stride
    assert deaths > 100 / stride


# ---- to and from a server


def test_a_server_has_the_records_and_groups_and_a_copy_of_it_is_the_same(
    source: klamm.Store, server: Serving, tmp_path: Path
) -> None:
    address = f"kafka://{server.address}"
    klamm.copy(source, address)
    source["orders"].append_many([(b"k%d" % n, b"more %d" % n) for n in range(100)])
    source.groups.reset("billing", to={("orders", 0): 45, ("orders", 1): 2})
    report = klamm.copy(source, address)
    assert report.groups == ["billing"]
    assert klamm.copy(source, address).offsets == 0
    with klamm.open(server.store) as there:
        assert contents(there, with_offsets=False) == contents(source, with_offsets=False)
        assert there["orders"].info().settings["retention.ms"] == "-1"
        for store in (source, there):
            store.groups.reset("copied", like="billing", topics="orders")
        assert next_values(there) == next_values(source)
        klamm.copy(address, tmp_path / "back", topics="orders")
        with klamm.open(tmp_path / "back") as back:
            assert contents(back) == contents(there)
            assert [part.end for part in back["orders"].info().partitions] == [
                part.end for part in there["orders"].info().partitions
            ]
            assert committed(back) == committed(there)
        there["orders"].append(b"its own", partition=0)
        klamm.copy(address, tmp_path / "back", topics="orders")
        assert contents_at(tmp_path / "back") == contents(there)


def next_values(store: klamm.Store) -> dict[int, bytes]:
    """What each partition gives a group first."""
    with store["orders"].consumer(group="copied", wait=0, max_bytes=1) as consumer:
        found: dict[int, bytes] = {}
        for record in consumer:
            found.setdefault(record.partition, record.value)
        return found


def test_a_copy_follows_while_the_server_is_killed_and_is_killed_itself(tmp_path: Path) -> None:
    """Each record is there once, in order."""
    dice = random.Random(seed_of())
    with klamm.open(tmp_path / "source") as source, restartable(tmp_path / "store") as server:
        source.topics.create("orders", 2)
        sent = [0, 0]
        over = threading.Event()

        def write() -> None:
            while not over.wait(0.002):
                number = dice.randrange(2)
                source["orders"].append(b"%d" % sent[number], partition=number, acks=1)
                sent[number] += 1

        writer = threading.Thread(target=write)
        writer.start()
        command = [str(KLAMM), "copy", source.path, f"kafka://{server.address}", "--follow"]
        try:
            for _ in range(3):
                copying = subprocess.Popen(command, stderr=subprocess.PIPE)
                before = ends(server.store)
                until(lambda before=before: ends(server.store) > before + 50, "records are copied")  # type: ignore[misc]
                if dice.random() < 0.5:
                    server.restart("kill")
                    after = ends(server.store)
                    until(lambda after=after: ends(server.store) > after + 50, "the copy goes on")  # type: ignore[misc]
                copying.kill()
                copying.communicate()
        finally:
            over.set()
            writer.join()
        copying = subprocess.Popen(command, stdout=subprocess.PIPE)
        total = sum(sent)
        until(lambda: ends(server.store) >= total, "all is copied but what markers stand for")
        until(lambda: total == sum(map(len, contents_at(server.store).values())), "all is copied")
        copying.send_signal(signal.SIGTERM)
        out, _ = copying.communicate(timeout=60)
        assert copying.returncode == 0 and json.loads(out)["positions"]
        values = {part: [record[3] for record in records] for part, records in contents_at(server.store).items()}
        assert values == {part: [b"%d" % number for number in range(sent[part])] for part in (0, 1)}


def ends(path: Path) -> int:
    """How far the copy has come; asked ten times a second at most, since each time opens the store."""
    time.sleep(0.1)
    with klamm.open(path, create=False) as store:
        return sum(part.end for part in store["orders"].info().partitions) if "orders" in store else 0


def test_of_two_copies_from_one_source_the_older_is_fenced(
    source: klamm.Store, server: Serving, tmp_path: Path
) -> None:
    address = f"kafka://{server.address}"
    klamm.copy(source, address)
    older = subprocess.Popen([KLAMM, "copy", source.path, address, "--follow"], stderr=subprocess.PIPE)
    before = ends(server.store)
    source["orders"].append(b"one more")
    until(lambda: ends(server.store) > before, "the older one copies")
    klamm.copy(source, address)
    source["orders"].append(b"and one")
    _, err = older.communicate(timeout=60)
    assert older.returncode == 1 and b"another copy from the same source has begun" in err
    klamm.copy(source, address)
    with klamm.open(server.store) as there:
        assert contents(there, with_offsets=False) == contents(source, with_offsets=False)


def test_a_topic_that_is_gone_or_of_others_is_not_copied_to(
    source: klamm.Store, server: Serving, tmp_path: Path
) -> None:
    address = f"kafka://{server.address}"
    with klamm.open(server.store) as there:
        there.topics.create("orders", 2)
        there["orders"].append(b"its own", partition=1)
        with pytest.raises(LogError, match="orders/1 has records of others"):
            klamm.copy(source, address)
        there.topics.delete("orders")
        klamm.copy(source, address)
        there.topics.delete("orders")
        with pytest.raises(LogError, match="was deleted or cut since it was copied"):
            klamm.copy(source, address)


def test_topics_that_klamm_made_for_itself_are_not_copied(source: klamm.Store, tmp_path: Path) -> None:
    core = source._acquired()
    core.catalog.create_topic(HISTORY_TOPIC, 1, {}, core.lay_out, internal=True)  # as a server does
    source.append(HISTORY_TOPIC, b"{}")
    klamm.copy(source, tmp_path / "target")
    with klamm.open(tmp_path / "target") as target:
        assert list(target) == ["empty", "orders"]


def test_what_a_copy_keeps_in_its_target_is_not_copied_on(source: klamm.Store, server: Serving, tmp_path: Path) -> None:
    klamm.copy(source, f"kafka://{server.address}")
    klamm.copy(server.store, tmp_path / "onwards")
    with klamm.open(tmp_path / "onwards") as onwards:
        assert list(onwards) == ["empty", "orders"]


def test_a_time_that_librdkafka_cannot_send_is_an_error(server: Serving, tmp_path: Path) -> None:
    with klamm.open(tmp_path / "source") as source:
        source.topics.create("orders").append(b"of 1970", timestamp=0)
        with pytest.raises(LogError, match="orders/0/0: a timestamp of 0 cannot be sent"):
            klamm.copy(source, f"kafka://{server.address}")


# ---- without a server


class ForgetfulTarget(DirectoryTarget):
    """Gives up what it has taken at its first commit, as one whose transaction was aborted."""

    def __init__(self, store: klamm.Store) -> None:
        super().__init__(store)
        self._taken: list[Chunk] = []
        self._gives_up = True

    def write(self, chunk: Chunk) -> None:
        self._taken.append(chunk)

    def commit(self) -> None:
        taken, self._taken = self._taken, []
        if taken and self._gives_up:
            self._gives_up = False
            raise RewindNeeded
        for chunk in taken:
            super().write(chunk)
        super().commit()


def test_what_was_given_up_is_read_again_from_where_it_began(source: klamm.Store, tmp_path: Path) -> None:
    with klamm.open(tmp_path / "target") as target:
        _Copy(DirectorySource(source), ForgetfulTarget(target), None, None).run(
            None, None, follow=False, with_groups=False
        )
        assert contents(target) == contents(source)


def test_a_source_of_the_same_length_is_told_from_another(tmp_path: Path) -> None:
    """The target ends with a batch without records: what is compared lies before it."""
    stores = [klamm.open(tmp_path / name) for name in ("one", "two")]
    for number, store in enumerate(stores):
        with store:
            store.topics.create("orders", 2)
            with store.transaction() as tx:
                tx.send("orders", b"%d" % number, partition=0)
    klamm.copy(tmp_path / "one", tmp_path / "target")
    with pytest.raises(LogError, match="has other records"):
        klamm.copy(tmp_path / "two", tmp_path / "target")
    assert contents_at(tmp_path / "target") == contents_at(tmp_path / "one")


# ---- the command


def test_the_command_copies_what_is_named_and_says_what_it_did(
    source: klamm.Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["copy", source.path, str(tmp_path / "target"), "--topics", "orders", "-o", "json"]) == 0
    about = json.loads(capsys.readouterr().out)
    assert {(each["topic"], each["partition"]) for each in about["positions"]} == set(ORDERS)
    assert run(["copy", source.path, str(tmp_path / "target"), "-t", "orders,empty", "-o", "table"]) == 0
    assert "0 offsets of 5 partitions (0 B) to" in capsys.readouterr().err
    assert run(["copy", source.path, str(tmp_path / "target"), "-t", "none"]) == 1
    assert "Topic 'none' does not exist" in capsys.readouterr().err
