"""What a program holds in its hands: producers, consumers, and what they share."""

from __future__ import annotations

from klamm.client.consumer import Consumer
from klamm.client.offsets import Offsets
from klamm.client.producer import Producer

__all__ = ["Consumer", "Offsets", "Producer"]
