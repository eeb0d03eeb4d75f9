"""Topics that nobody writes to expire as well, without a call of maintain(), in any process that uses the store."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import klamm
from klamm.errors import readable
from klamm.log.partition import Partition
from klamm.store import directory, retention_check
from tests.crash.stores import without_maintenance
from tests.procs import until

DAY = 24 * 3600 * 1000
OLD = time.time_ns() // 1_000_000 - 30 * DAY


@pytest.fixture
def store(path: Path) -> Iterator[klamm.Store]:
    """`busy` is written to; the others have old records, and nobody writes to them any more."""
    with klamm.open(path) as store:
        store.topics.create("busy")
        store.topics.create("idle", partitions=2)
        store.topics.create("large", settings={"segment.bytes": 1000, "retention.bytes": 3000, "retention.ms": -1})
        store.topics.create("kept", settings={"retention.ms": -1})
        store.topics.create("compacted", settings={"cleanup.policy": "compact"})
        store.topics.create("empty")
        for topic in ("idle", "kept", "compacted"):
            store.append_many(topic, [(b"k", b"v", None, OLD)] * 5, partition=0, acks=1)
        yield store


def ends(store: klamm.Store, topic: str, number: int = 0) -> tuple[int, int]:
    return log_of(store, topic, number).ends()[:2]


def log_of(store: klamm.Store, topic: str, number: int = 0) -> Partition:
    return store._acquired().topic(topic).partition(number)


def make_due(store: klamm.Store) -> None:
    core = store._acquired()
    core.heads.retention_checked_ms = max(1, core.heads.boot_ms() - int(retention_check.EVERY_S * 1000) - 1)
    with core._wake:
        core._wake.notify_all()


def test_an_idle_topic_expires_while_the_process_appends_to_another_one(store: klamm.Store) -> None:
    store.append("busy", b"v")
    assert ends(store, "idle") == (0, 5)
    make_due(store)
    until(lambda: ends(store, "idle") == (5, 5), "the idle topic has expired")
    assert (ends(store, "kept"), ends(store, "compacted"), ends(store, "busy")) == ((0, 5), (0, 5), (0, 1))


def test_an_idle_topic_expires_while_the_process_only_consumes(store: klamm.Store, path: Path) -> None:
    store.close()
    with klamm.open(path) as store, store.consumer("busy", wait=0) as consumer:
        consumer.poll(timeout=0)
        make_due(store)
        until(lambda: ends(store, "idle") == (5, 5), "the idle topic has expired")


def test_a_check_that_is_due_is_made_by_a_process_that_lives_shortly(store: klamm.Store, path: Path) -> None:
    make_due(store)
    core = store._acquired()
    until(lambda: retention_check.wait_s(core) > 0, "it was made")
    log_of(store, "idle", 1).append_one(None, b"old", OLD)
    store.close()
    with klamm.open(path) as store:
        make_due(store)
        store.append("busy", b"v")
        until(lambda: ends(store, "idle", 1) == (1, 1), "the record has expired")


def test_nothing_is_checked_before_it_is_due_and_then_once_for_all_processes(store: klamm.Store) -> None:
    core = store._acquired()
    store.append("busy", b"v")
    assert retention_check.EVERY_S - 60 < retention_check.wait_s(core) <= retention_check.EVERY_S
    store._acquired().heads.advance(int(retention_check.EVERY_S * 1000) - 30_000)
    assert 0 < retention_check.wait_s(core) <= 30
    assert ends(store, "idle") == (0, 5)
    retention_check.run(core, lambda: False)
    assert retention_check.wait_s(core) > 30


def test_a_check_that_was_stopped_is_left_to_another_process(store: klamm.Store, path: Path) -> None:
    store.close()
    with klamm.open(path) as store:
        core = store._acquired()
        without_maintenance(core)
        core.heads.retention_checked_ms = 1
        retention_check.run(core, lambda: True)
        assert core.heads.retention_checked_ms == 1
        assert ends(store, "idle") == (0, 5)


def test_retention_by_size_is_checked_too(store: klamm.Store) -> None:
    log = log_of(store, "large")
    store.append("large", b"first")
    for _ in range(60):
        log.log.append_one(None, b"x" * 200)  # below the layer that cleans up at each new segment
    assert log.log_size() > 6000
    retention_check.run(store._acquired(), lambda: False)
    assert log.log_size() <= 4000


def test_only_what_has_something_to_expire_is_opened(store: klamm.Store, path: Path) -> None:
    store.close()
    with klamm.open(path) as store:
        core = store._acquired()
        retention_check.run(core, lambda: False)
        assert [(log.topic, log.number) for log in core.opened()] == [("idle", 0)]


def test_after_a_boot_a_log_is_recovered_only_if_its_files_are_old_or_large(
    store: klamm.Store, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.append("busy", b"v")
    old = Path(readable(log_of(store, "idle").directory), f"{0:020}.log")
    store.close()
    os.utime(old, (OLD / 1000, OLD / 1000))
    monkeypatch.setattr(directory, "boot_id", lambda: b"another boot, 16")
    with klamm.open(path) as store:
        core = store._acquired()
        retention_check.run(core, lambda: False)
        assert [(log.topic, log.number) for log in core.opened()] == [("idle", 0)]
        assert ends(store, "idle") == (5, 5)


def test_a_damaged_partition_does_not_keep_the_others_from_expiring(
    store: klamm.Store, caplog: pytest.LogCaptureFixture
) -> None:
    store.topics.create("aaa")
    log = log_of(store, "aaa")
    log.append_one(None, b"v", OLD)
    with log.log.append_lock():
        log.log.roll()
    damaged, aside = Path(log.directory, f"{0:020}.log"), Path(log.directory, "aside")
    damaged.rename(aside)
    damaged.mkdir()
    retention_check.run(store._acquired(), lambda: False)
    assert ends(store, "idle") == (5, 5)
    damaged.rmdir()
    aside.rename(damaged)
    assert "aaa/0: retention" in caplog.text


@pytest.mark.parametrize("name", ["lock", "members"])
def test_a_lock_file_that_is_removed_under_a_process_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    path = tmp_path / "store"
    with klamm.open(path) as store:
        core = store._acquired()
        without_maintenance(core)
        retention_check.run(core, lambda: False)
        assert not caplog.records
        (path / name).unlink()
        for _ in range(2):
            retention_check.run(core, lambda: False)
        (record,) = caplog.records
        assert record.getMessage().startswith(f"{path}/{name}: was removed or replaced while it is in use")
        (path / name).touch()
        retention_check.run(core, lambda: False)
        assert len(caplog.records) == 1
