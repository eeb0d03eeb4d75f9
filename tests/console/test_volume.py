"""The volume of a topic over time, against counting the records one by one."""

from __future__ import annotations

import random
from pathlib import Path

import klamm
from klamm.client.subscription import open_partitions
from klamm.console.volume import Volume, count_volume
from klamm.types import TopicPartition

T0 = 1_790_000_000_000


def volume_of(store: klamm.Store, topic: str, stretches: int) -> Volume:
    count = len(store.topics.describe(topic).partitions)
    names = [TopicPartition(topic, number) for number in range(count)]
    return count_volume(open_partitions(store._acquired(), names), stretches)


def test_a_stretch_has_the_records_whose_time_is_within_it(tmp_path: Path) -> None:
    draw = random.Random(7)
    with klamm.open(tmp_path / "events") as store:
        store.topics.create("t", partitions=3)
        times: dict[int, list[int]] = {0: [], 1: [], 2: []}
        for number in (0, 1):
            time_ms = T0
            for _ in range(200):
                time_ms += draw.choice((0, 1, 5, 1000, 100_000))
                times[number].append(time_ms)
            rows = [(None, b"x", None, time_ms) for time_ms in times[number]]
            store.append_many("t", rows, partition=number, acks=1)
        for stretches in (1, 2, 7, 90):
            volume = volume_of(store, "t", stretches)
            assert len(volume.edges_ms) == stretches + 1
            assert (
                volume.edges_ms[0] == min(times[0] + times[1]) and volume.edges_ms[-1] == max(times[0] + times[1]) + 1
            )
            for number, stamps in times.items():
                expected = [
                    sum(low <= stamp < high for stamp in stamps)
                    for low, high in zip(volume.edges_ms, volume.edges_ms[1:], strict=False)
                ]
                assert volume.counts[number] == expected
            assert sum(volume.totals) == 400


def test_a_topic_without_records_and_one_with_a_single_time_have_a_volume(tmp_path: Path) -> None:
    with klamm.open(tmp_path / "events") as store:
        store.topics.create("t")
        assert volume_of(store, "t", 10) == Volume([], {0: []})
        store.append_many("t", [(None, b"x", None, T0)] * 5, acks=1)
        assert volume_of(store, "t", 10) == Volume([T0, T0 + 1], {0: [5]})


def test_of_many_partitions_some_are_left_out_and_counted(tmp_path: Path) -> None:
    with klamm.open(tmp_path / "events") as store:
        store.topics.create("t", partitions=70)
        store.append("t", b"x", partition=69, timestamp=T0, acks=1)
        volume = volume_of(store, "t", 10)
        assert len(volume.counts) == 64 and volume.left_out == 6
