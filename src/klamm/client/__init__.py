"""The clients of a program: producers, consumers, and what they share."""

from __future__ import annotations

from klamm.client.consume.consumer import Consumer
from klamm.client.groups.offsets import Offsets
from klamm.client.produce.producer import Producer

__all__ = ["Consumer", "Offsets", "Producer"]
