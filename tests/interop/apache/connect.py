"""Kafka Connect, distributed, with an exactly-once source, while its workers and the server are killed.

VerifiableSourceConnector counts up, and its offset is the last number that it sent: with exactly.once.source.support,
each number is in the topic exactly once, in order, whatever was killed.
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

import klamm
from tests.crash.cases import seed_of
from tests.interop.apache.jars import java_command
from tests.interop.apache.processes import Program, killed_now_and_then
from tests.interop.raw import Raw
from tests.procs import until
from tests.serving import free_port

__all__ = ["main"]

MAIN = "org.apache.kafka.connect.cli.ConnectDistributed"
TOPIC = "numbers"
TASKS = 2
WORKERS = 2
KILLS = ("worker",) * 5 + ("server",) * 3
GO_ON_S = 300.0  # a worker takes a minute to start on a busy machine
WORKER = """
bootstrap.servers={address}
group.id=connect
exactly.once.source.support=enabled
listeners=http://127.0.0.1:{port}
config.storage.topic=connect-configs
offset.storage.topic=connect-offsets
status.storage.topic=connect-status
config.storage.replication.factor=1
offset.storage.replication.factor=1
status.storage.replication.factor=1
offset.storage.partitions=3
key.converter=org.apache.kafka.connect.json.JsonConverter
value.converter=org.apache.kafka.connect.json.JsonConverter
key.converter.schemas.enable=false
value.converter.schemas.enable=false
session.timeout.ms=6000
heartbeat.interval.ms=1000
scheduled.rebalance.max.delay.ms=2000
offset.flush.interval.ms=500
"""
CONNECTOR = {
    "connector.class": "org.apache.kafka.connect.tools.VerifiableSourceConnector",
    "tasks.max": str(TASKS),
    "topic": TOPIC,
    "throughput": "500",
    "exactly.once.support": "requested",
    "transaction.boundary": "interval",
    "transaction.boundary.interval.ms": "200",
}


def _put(port: int, path: str, body: object) -> bool:
    data = json.dumps(body).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", data, {"Content-Type": "application/json"})
    request.method = "PUT"
    try:
        with urllib.request.urlopen(request, timeout=30):
            return True
    except OSError:
        return False  # it is not ready yet


def numbers_of(store: Path) -> dict[int, list[int]]:
    """Return what each task has written, as a reader of committed records sees it."""
    numbers: dict[int, list[int]] = {}
    with klamm.open(store) as opened, opened.consumer(TOPIC, start="earliest", wait=0) as consumer:
        for record in consumer:
            assert record.key is not None and record.value is not None
            numbers.setdefault(int(json.loads(record.key)), []).append(int(json.loads(record.value)))
    return numbers


def go_on(store: Path) -> None:
    """Wait until every task has written 200 numbers more."""
    before = {task: len(numbers) for task, numbers in numbers_of(store).items()}

    def has_gone_on() -> bool:
        time.sleep(0.5)
        now = numbers_of(store)
        return all(len(now[task]) > count + 200 for task, count in before.items())

    until(has_gone_on, "all tasks go on", GO_ON_S)


def main(classes: str) -> int:
    seed = seed_of()
    chance = random.Random(seed)
    directory = Path(tempfile.mkdtemp(prefix="klamm-connect-"))
    print(f"output in {directory}", flush=True)
    store = directory / "store"
    with killed_now_and_then(directory) as (server, programs):
        with Raw(server.address) as raw:
            raw.create(TOPIC, 1)
        ports = [free_port() for _ in range(WORKERS)]
        for number, port in enumerate(ports):
            properties = directory / f"worker-{number}.properties"
            properties.write_text(WORKER.format(address=server.address, port=port))
            programs.append(Program(f"worker-{number}", java_command(classes, MAIN, str(properties)), directory))
        until(lambda: _put(ports[0], "/connectors/numbers/config", CONNECTOR), "the connector is made", 180)
        until(lambda: len(numbers_of(store)) == TASKS, "all tasks write", GO_ON_S)
        kills = chance.sample(KILLS, len(KILLS))
        for kill in kills:
            if kill == "server":
                server.restart("kill")
            else:
                victim = chance.choice(programs)
                victim.kill()
                victim.start()
            go_on(store)
            time.sleep(chance.uniform(0.0, 5.0))
    written = numbers_of(store)
    wrong = {
        task: next(number for number, value in enumerate(numbers) if number != value)
        for task, numbers in written.items()
        if numbers != list(range(len(numbers)))
    }
    counts = {task: len(numbers) for task, numbers in written.items()}
    print(f"Connect: numbers by task {counts}, first wrong ones {wrong}, kills {kills}, KLAMM_SEED={seed}")
    return 0 if not wrong and len(written) == TASKS else 1


if __name__ == "__main__":
    sys.exit("run it by python -m tests.interop.apache connect")
