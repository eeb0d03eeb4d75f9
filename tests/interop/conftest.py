"""Brokers and servers for clients. Tests that want another server start their own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.interop.brokers import (  # noqa: F401
    _apache_ahead,
    _tool_jvm,
    apache_broker,
    broker,
    klamm_broker,
    run_tool,
    tools,
)
from tests.interop.secured import exchange  # noqa: F401
from tests.serving import Serving, restartable


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Serving]:
    with restartable(tmp_path / "store") as made:
        yield made
