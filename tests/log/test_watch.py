"""Watch: whether heads have moved, for those who ask before each read."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest

import klamm
from klamm.log.head import DELETED, Watch, WatchedLogs
from tests.rig import Rig, batch


def test_a_watch_tells_of_each_head_and_of_the_catalog(tmp_path: Path) -> None:
    with klamm.open(tmp_path) as store:
        store.topics.create("orders", partitions=3)
        core = store._acquired()
        logs = [partition.log for partition in core.topic("orders").partitions()]
        watch = Watch(logs)

        def moved() -> bool:
            return watch.moved

        assert moved()
        for place, log in enumerate(logs):
            watch.seen(place, log.seq)
            assert moved()  # the catalog was not seen yet
        watch.seen(3, core.heads.catalog_version)
        assert not moved()
        for place, log in enumerate(logs):
            store.append("orders", b"", partition=place, acks=1)
            assert moved()
            watch.seen(place, log.seq)
            assert not moved()
        store.topics.create("others")
        assert moved()


def test_a_watch_refuses_what_it_cannot_watch(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="nothing to watch"):
        Watch([])
    with klamm.open(tmp_path) as store:
        store.topics.create("orders")
        watch = Watch([store._acquired().topic("orders").partition(0).log])
        for place in (-1, 2):
            with pytest.raises(IndexError):
                watch.seen(place, 0)
        with pytest.raises(TypeError):
            Watch([None])  # type: ignore[list-item]


def test_watched_logs_come_and_go_and_are_told_when_they_move(rig: Rig) -> None:
    logs = [rig.partition(slot) for slot in range(1, 40)]
    watched = WatchedLogs()
    assert watched.moved() == []
    places = [watched.add(each.log) for each in logs]
    assert (places, len(watched)) == (list(range(39)), 39)
    assert watched.moved() == places, "new ones count as moved"
    assert watched.moved() == []
    logs[3].append(batch(1, 1))
    logs[38].append(batch(1, 1))
    assert watched.moved() == [3, 38]
    for place in (3, 7):
        watched.remove(place)
    logs[3].append(batch(1, 2))
    assert (watched.moved(), len(watched)) == ([], 37)
    assert watched.add(logs[3].log) in (3, 7)
    assert len(watched.moved()) == 1
    logs[5].log.set_flags(DELETED)
    assert watched.moved() == [5], "what is deleted has moved"
    for gone in (39, -1):
        with pytest.raises(KeyError):
            watched.remove(gone)


def test_watched_logs_keep_what_they_look_at(rig: Rig) -> None:
    """Places that are free are not looked at, and a log that nothing else refers to stays."""
    watched = WatchedLogs()
    places = [watched.add(rig.partition(slot).log) for slot in range(1, 100)]
    gc.collect()
    assert watched.moved() == places
    for place in places:
        watched.remove(place)
    with pytest.raises(KeyError):
        watched.remove(places[0])
    assert (watched.moved(), len(watched)) == ([], 0)
