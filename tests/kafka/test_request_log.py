"""What /connections shows of requests, and to whom: RQL1 of kafka/request_log.py."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from klamm.kafka.monitor import Monitor
from klamm.kafka.request_log import as_shown
from klamm.kafka.wire.tables.topics import ALTER_CONFIGS, CREATE_TOPICS, INCREMENTAL_ALTER_CONFIGS


@pytest.mark.parametrize(
    ("api", "within"),
    [
        (ALTER_CONFIGS, {"resource_type": 4, "resource_name": "1"}),
        (INCREMENTAL_ALTER_CONFIGS, {"resource_type": 4, "resource_name": "1"}),
        (CREATE_TOPICS, {"name": "orders"}),
    ],
)
def test_the_value_of_a_setting_is_not_shown(api: Any, within: dict[str, Any]) -> None:
    request = api.request
    config = request.Config(name="ssl.keystore.password", value="hunter2")
    if api is CREATE_TOPICS:
        sent = request(topics=[request.Topic(**within, configs=[config])])
    else:
        sent = request(resources=[request.Resource(**within, configs=[config])])
    text = json.dumps(as_shown(sent))
    assert "ssl.keystore.password" in text and "hunter2" not in text


@pytest.mark.parametrize(
    ("host", "peer", "status"),
    [
        ("localhost", "127.0.0.1", 200),
        ("::1", "::1", 200),
        ("localhost", "10.0.0.1", 421),
        ("127.0.0.1", "fe80::1%eth0", 421),
        ("evil.example", "127.0.0.1", 421),
    ],
)
def test_requests_are_shown_to_this_machine_whatever_name_it_is_called_by(host: str, peer: str, status: int) -> None:
    monitor = Monitor("127.0.0.1", 0)
    try:
        log = SimpleNamespace(describe=lambda: ["a request"])
        monitor._broker = SimpleNamespace(request_log=log)  # type: ignore[assignment]
        answer = monitor.answer("/connections", host, peer)
        assert answer[0] == status and (b"a request" in answer[2]) == (status == 200)
    finally:
        monitor.close()
