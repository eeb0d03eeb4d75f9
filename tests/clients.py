"""Clients of librdkafka that a test did not close: tests/conftest.py closes them."""

from __future__ import annotations

import gc
from contextlib import suppress


def close_all() -> None:
    """Close all producers and consumers of this process, and wait until their threads have ended. What is not sent is
    dropped. An AdminClient cannot be closed: it lives as long as its object.
    """
    from confluent_kafka import Consumer, KafkaException, Producer

    gc.collect()
    for client in gc.get_objects():
        if not isinstance(client, Producer | Consumer):
            continue
        with suppress(KafkaException, SystemError, RuntimeError):  # one that is fenced cannot abort, one is closed
            if isinstance(client, Producer):
                client.purge()  # close() waits for all that is in a queue
            client.close()


__all__ = ["close_all"]
