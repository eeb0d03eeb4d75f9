"""The embedded API: `klamm.open`, and the Store that it returns."""

from __future__ import annotations

from klamm.api.functions import check, open  # noqa: A004  # klamm.open is meant
from klamm.api.store import Store
from klamm.api.topic import Topic
from klamm.api.topics import Topics
from klamm.api.transactions import Transactions

__all__ = ["Store", "Topic", "Topics", "Transactions", "check", "open"]
