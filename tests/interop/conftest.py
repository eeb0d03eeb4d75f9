"""Fixtures of this folder. Who wants another server makes his own."""

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
from tests.interop.serving import Serving, serving


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Serving]:
    with serving(tmp_path) as made:
        yield made
