"""Something to see on each page of a console that a store at rest leaves empty: members, a history, an open
transaction, a pipeline that has run, and a Kafka server with a client.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import klamm
from klamm.console.history import Recorder
from klamm.console.rebalances import Rebalance
from klamm.console.sampler import GroupPoint, Look
from klamm.spark.pipelines import checkpoint
from tests.kafka.member import Client, join_as_consumer
from tests.serving import serving

READERS = "readers"
CLIENTS = "clients"
VIEWS = {
    "a group with members": f"/groups/show?group={READERS}",
    "a group of Kafka clients": f"/groups/show?group={CLIENTS}",
    "an open transaction": "/transactions",
    "pipelines": "/pipelines",
    "a pipeline": "/pipelines/show?name=orders",
    "connections": "/connections",
    "trouble": "/trouble",
}
LONG_SESSION = {"session_timeout_ms": 600_000, "rebalance_timeout_ms": 600_000}


@contextmanager
def content(opened: klamm.Store) -> Iterator[str]:
    """Fill a store that has a topic `orders`, as long as the block lasts. Yield the address of its server's metrics."""
    record_history(opened)
    run_pipeline(opened)
    opened.topics.create("held", exist_ok=True)
    options = ("--metrics", "0", "--set", "request.log.size=20", "--set", "group.max.session.timeout.ms=600000")
    with ExitStack() as open_things:
        reader = open_things.enter_context(opened.consumer("orders", group=READERS, member="one", wait=0))
        assert reader.poll()
        tx = opened.transaction(timeout=600, batch_bytes=1)
        open_things.push(lambda *_: tx.abort())
        tx.send("held", b"not yet")
        server = open_things.enter_context(serving(Path(opened.path), *options))
        client = open_things.enter_context(Client(server.address))
        join_as_consumer(client, {"orders": [0]}, group=CLIENTS, **LONG_SESSION)
        yield server.ready()["metrics"]


def record_history(opened: klamm.Store) -> None:
    """Record an hour with a lag that grows and falls, a gap and a rebalance."""
    recorder = Recorder(opened, every_s=0)
    now_ms = time.time_ns() // 1_000_000
    for n in range(80):
        time_ms = now_ms - (80 - n) * 20_000
        if not 30 <= n < 40:
            lag = 60 - abs(40 - n)
            point = GroupPoint(time_ms, 120, lag, lag * 900)
            rebalance = Rebalance(time_ms, "two joined", 2, 4000, 17)
            over = dict.fromkeys((READERS, CLIENTS), rebalance) if n == 60 else {}
            recorder.record(Look(time_ms, {}, dict.fromkeys((READERS, CLIENTS), point), every_ms=20_000), over)
    assert recorder.problem is None


def run_pipeline(opened: klamm.Store) -> None:
    """Leave what five micro-batches of Spark leave."""
    folder = Path(checkpoint(opened.path, "orders", pipeline="mine"))
    topics = {
        "store": opened._acquired().catalog.store_id,
        "topics": {"orders": str(opened._acquired().catalog.topic("orders").id)},
    }
    for number in range(5):
        ours = {**topics, "from": {"orders": {"0": 0}}} if number == 0 else topics
        lines = ["v1", "{}", json.dumps({"orders": {"0": 4 * (number + 1)}, "@klamm": ours})]
        for part, seconds in (("offsets", 3 + number), ("commits", 0)):
            (folder / part).mkdir(parents=True, exist_ok=True)
            (folder / part / str(number)).write_text("\n".join(lines))
            done_s = time.time() - 60 * (5 - number)
            os.utime(folder / part / str(number), (done_s - seconds, done_s - seconds))
