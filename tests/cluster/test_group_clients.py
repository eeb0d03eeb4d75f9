"""Consumers that read and set offsets of groups: they are used again, and few are kept."""

from __future__ import annotations

import logging

import pytest

from klamm.cluster import group_clients
from klamm.cluster.group_clients import GroupClients


def test_a_consumer_is_used_by_one_thread_and_then_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_clients, "_MAX_IDLE", 2)
    clients = GroupClients({"bootstrap.servers": "127.0.0.1:1", "log_level": 0}, "here", logging.getLogger("none"))
    with clients.of("a") as first, clients.of("a") as second, clients.of("b") as third:
        assert len({id(first), id(second), id(third)}) == 3
    with clients.of("a") as again:
        assert again is second or again is first
    assert len(clients._idle) == 2
    clients.close()
    with pytest.raises(RuntimeError):
        again.assignment()
    assert clients._idle == []
