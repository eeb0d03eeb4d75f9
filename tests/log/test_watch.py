"""Watch: whether heads have moved, for those who ask before each read."""

from __future__ import annotations

from pathlib import Path

import pytest

import klamm
from klamm.log.head import Watch


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
