"""Send and read a record with kafka-python: a process of its own, which imports nothing else that takes long.

    python -m tests.interop.kafka_python_exchange

Standard input says where and with which login (secured.py).
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import kafka.errors

import kafka
from tests.interop.login import Lines, Login

BOUND_S = 30


def main() -> None:
    """Print the value of the record, or what the client says that is wrong."""
    address, topic, *fields = json.load(sys.stdin)
    login = Login(*fields[:4], *(each and Path(each) for each in fields[4:6]), *fields[6:])
    config: dict[str, Any] = {"bootstrap_servers": address, **login.python()}
    if login.token:
        from kafka.net.sasl.oauth import AbstractTokenProvider

        provider = type("Provider", (AbstractTokenProvider,), {"token": lambda self: login.token})
        config["sasl_oauth_token_provider"] = provider()
    with Lines("kafka") as lines:
        try:
            producer = kafka.KafkaProducer(**config, max_block_ms=10_000, bootstrap_timeout_ms=3_000)
            producer.send(topic, b"kafka-python").get(BOUND_S)
            producer.close()
        except kafka.errors.KafkaError as error:
            json.dump({"refused": "\n".join((*lines, str(error)))}, sys.stdout)
            sys.stdout.flush()
            os._exit(0)  # a thread of a producer that was refused may go on
    consumer = kafka.KafkaConsumer(topic, **config, auto_offset_reset="earliest", consumer_timeout_ms=BOUND_S * 1000)
    json.dump({"value": bytes(next(consumer).value).decode()}, sys.stdout)
    consumer.close()


if __name__ == "__main__":
    main()
