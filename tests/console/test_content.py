"""Pages with something on them that needs processes: HTML, JSON, saved; by a visitor who may change the store."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

import klamm
from tests.console.conftest import fill
from tests.console.content import VIEWS, content
from tests.console.visitor import Visitor

FORMS = ("/topics/orders/produce", "/topics/orders/purge?before=%405", "/groups/reset?group=billing&to=earliest")
ADDRESSES = [*(view for view in VIEWS.values() if not view.startswith("/pipelines")), *FORMS]


@pytest.fixture(scope="module")
def visitor(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Visitor]:
    with klamm.open(tmp_path_factory.mktemp("content") / "events") as opened:
        fill(opened)
        with content(opened) as metrics:
            yield Visitor(opened, allow_changes=True, server=f"http://{metrics}")


@pytest.mark.parametrize("address", ADDRESSES)
def test_a_page_with_content_is_html_and_json_and_one_file(visitor: Visitor, address: str) -> None:
    page, data = visitor.get(address), visitor.get(f"/api{address}")
    assert (page.status, data.status) == (200, 200), page.words
    assert 'class="empty"' not in page.text, page.words
    assert data.json["command"] in page.words
    saved = visitor.get(f"{address}{'&' if '?' in address else '?'}save=1")
    assert saved.status == 200 and "saved 20" in saved.words
    assert not re.search(r"<(form|nav|button|input|script)\b", saved.text) and "csrf" not in saved.text
    assert re.findall(r'href="([^"]*)"', saved.text) == ["data:,", "#content"]


def test_requests_of_a_connection_are_those_of_the_client(visitor: Visitor) -> None:
    (row,) = visitor.get("/api/connections").json["connections"]
    assert row["client_id"] == "tests"
    data = visitor.get(f"/api/connections?peer={row['peer']}").json
    assert {"JoinGroup", "SyncGroup"} <= {request["api"] for request in data["requests"]}
    assert "SyncGroup v4" in visitor.get(f"/connections?peer={row['peer']}").words
