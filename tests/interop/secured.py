"""Clients of the interop tests, each with a login: one record out and in, or what the client says that is wrong."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.interop.login import Lines, Login

if TYPE_CHECKING:
    from tests.interop.one_jvm import Ran
    from tests.serving import Serving

__all__ = ["CLIENTS", "OPEN_METRICS", "Exchange", "Refused", "counted", "exchange"]

BOUND_S = 30


class Refused(Exception):
    """In the client's own words."""


Exchange = Callable[[str, Login, str], str]
"""Sends one record to a topic that is there, reads it back, and returns its value; or raises Refused."""


def _confluent(address: str, login: Login, topic: str, where: Path) -> str:
    from confluent_kafka import Consumer, Producer

    errors: list[Any] = []
    config = {"bootstrap.servers": address, "message.timeout.ms": 10_000, **login.librdkafka}
    producer = Producer({**config, "error_cb": errors.append, "log_level": 0})
    producer.produce(topic, b"confluent-kafka")
    for _ in range(300):
        producer.poll(0.1)
        refusals = [each for each in errors if each.name() in ("_AUTHENTICATION", "_SSL", "_TRANSPORT")]
        if refusals:
            producer.purge()
            producer.flush(1)
            raise Refused(refusals[0].str())
        if not len(producer):
            break
    assert not len(producer), errors
    del config["message.timeout.ms"]
    consumer = Consumer({**config, "group.id": "c", "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    record = consumer.poll(BOUND_S)
    consumer.close()
    assert record is not None and record.error() is None
    value = record.value()
    return (value if isinstance(value, bytes) else str(value).encode()).decode()


def _kcat(address: str, login: Login, topic: str, where: Path) -> str:
    found = shutil.which("kcat")
    if found is None:
        pytest.skip("there is no kcat on this machine: see `make tools`")
    options = [word for name, value in login.librdkafka.items() for word in ("-X", f"{name}={value}")]
    command = [found, "-b", address, *options]
    sent = subprocess.run(
        [*command, "-P", "-t", topic, "-X", "message.timeout.ms=8000"],
        input="kcat", capture_output=True, text=True, timeout=BOUND_S,
    )  # fmt: skip
    if sent.returncode:
        raise Refused(sent.stderr)
    read = subprocess.run([*command, "-C", "-t", topic, "-e", "-q"], capture_output=True, text=True, timeout=BOUND_S)
    assert read.returncode == 0, read.stderr
    return read.stdout.strip()


def _kafka_python(address: str, login: Login, topic: str, where: Path) -> str:
    """In a process of its own: where it is refused, kafka-python leaves its sockets to the collector."""
    given = json.dumps([address, topic, *(str(each) if isinstance(each, Path) else each for each in login)])
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tests.interop.kafka_python_exchange"],
        input=given,
        capture_output=True,
        text=True,
        timeout=3 * BOUND_S,
        cwd=Path(__file__).parents[2],
    )
    assert done.returncode == 0, done.stderr
    result: dict[str, str] = json.loads(done.stdout)
    if "refused" in result:
        raise Refused(result["refused"])
    return result["value"]


def _aiokafka(address: str, login: Login, topic: str, where: Path) -> str:
    from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
    from aiokafka.errors import KafkaError

    config: dict[str, Any] = {"bootstrap_servers": address, **login.python()}
    if login.token:
        from aiokafka.abc import AbstractTokenProvider

        async def token(_: object) -> str:
            return login.token

        config["sasl_oauth_token_provider"] = type("Provider", (AbstractTokenProvider,), {"token": token})()

    async def exchange() -> str:
        producer = AIOKafkaProducer(**config)
        try:
            await producer.start()
            await producer.send_and_wait(topic, b"aiokafka")
        except KafkaError as error:
            raise Refused("\n".join((*lines, str(error)))) from None
        finally:
            await producer.stop()
        consumer = AIOKafkaConsumer(topic, **config, auto_offset_reset="earliest")
        await consumer.start()
        try:
            record = await asyncio.wait_for(consumer.getone(), BOUND_S)
            return bytes(record.value).decode()
        finally:
            await consumer.stop()

    async def run() -> str:
        try:
            return await exchange()
        finally:  # of a login that failed, it leaves connections to the garbage collector
            loop: Any = asyncio.get_running_loop()
            while left := [each for each in loop._transports.values() if each._sock is not None]:
                for transport in left:
                    transport.abort()
                await asyncio.sleep(0.001)

    with Lines("aiokafka") as lines:
        return asyncio.run(run())


def _java(run_tool: Callable[..., Ran], address: str, login: Login, topic: str, where: Path) -> str:
    config = where / "client.properties"
    # A producer that was refused stays in the JVM, and is not to try again every second until all tests are over.
    config.write_text(login.java + "max.block.ms=10000\nreconnect.backoff.max.ms=600000\n")
    common = ["--bootstrap-server", address, "--topic", topic, "--command-config", str(config)]
    allowed = {"org.apache.kafka.sasl.oauthbearer.allowed.urls": login.token_url}
    producer = run_tool("console-producer", *common, given="java\n", properties=allowed)
    if "Authentication" in producer.out + producer.err or "SSL" in producer.out + producer.err:
        raise Refused(producer.out + producer.err)
    producer.done()
    bounds = ["--max-messages", "1", "--timeout-ms", str(BOUND_S * 1000)]
    return run_tool("console-consumer", *common, "--from-beginning", *bounds).done().strip()


CLIENTS: dict[str, Callable[..., str]] = {
    "confluent-kafka": _confluent,
    "kcat": _kcat,
    "kafka-python": _kafka_python,
    "aiokafka": _aiokafka,
    "java": _java,
}


OPEN_METRICS = "metrics.security.protocol=PLAINTEXT"


def counted(server: Serving, name: str, **labels: str) -> float:
    """Return a counter of the server's metrics."""
    with urllib.request.urlopen(f"http://{server.ready()['metrics']}/metrics", timeout=BOUND_S) as response:
        families = text_string_to_metric_families(response.read().decode())
    samples = [each for family in families for each in family.samples]
    return sum(each.value for each in samples if each.name == name and each.labels.items() >= labels.items())


@pytest.fixture
def exchange(request: pytest.FixtureRequest, tmp_path: Path) -> Exchange:
    """What the test's parameter `client` names. Java's clients are run in one JVM."""
    client: str = request.getfixturevalue("client")
    more = [request.getfixturevalue("run_tool")] if client == "java" else []
    return partial(CLIENTS[client], *more, where=tmp_path)
