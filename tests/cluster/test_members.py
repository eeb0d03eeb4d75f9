"""Members of a group of a cluster while its coordinator moves."""

from __future__ import annotations

from typing import Any

import pytest

import klamm
from klamm.cluster.group_member import ClusterMember
from klamm.errors import Unreachable
from tests.interop.brokers import Broker, fresh
from tests.procs import until


def test_a_member_that_could_not_look_up_its_offsets_reads_when_it_is_polled_again(
    klamm_broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    with klamm.open(f"kafka://{klamm_broker.address}") as store:
        topic = store.topics.create(fresh("orders"), 2)
        topic.append_many([(b"%d" % n, b"%d" % n) for n in range(20)])
        look_up, failures = ClusterMember.committed, 2

        def fail(self: ClusterMember) -> Any:
            nonlocal failures
            if failures:
                failures -= 1
                raise Unreachable("the coordinator does not respond")
            return look_up(self)

        monkeypatch.setattr(ClusterMember, "committed", fail)
        with store.consumer(topic.name, group=fresh("billing")) as consumer:
            found: list[Any] = []
            raised = 0

            def has_all() -> bool:
                nonlocal raised
                try:
                    found.extend(consumer.poll(timeout=0.1))
                except Unreachable:
                    raised += 1
                return len(found) == 20

            until(has_all, "all partitions are read")
            assert raised == 2 and sorted(consumer.assignment()) == [(topic.name, 0), (topic.name, 1)]
            consumer.commit()
