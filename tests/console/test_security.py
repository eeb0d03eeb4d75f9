"""Who may ask what: SEC1 to SEC4 of console/security.py."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from base64 import b64encode
from typing import Any

import pytest
import uvicorn

import klamm
from klamm.console import child
from klamm.console.app import ACTIONS, PAGES
from klamm.console.options import ConsoleOptions
from klamm.console.passwords import has_users, is_password
from klamm.console.security import Guard
from klamm.console.server import run_console
from klamm.store.users import Users
from tests.console.visitor import HOST, Visitor

TOKEN = "correct horse battery"


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8080", "127.0.0.1.evil.example", "", "[bad"])
def test_a_request_for_another_host_is_refused(looker: Visitor, host: str) -> None:
    answer = looker.get("/", host=host)
    assert answer.status == 421 and b"orders" not in answer.body


@pytest.mark.parametrize("host", ["127.0.0.1:8080", "localhost:8080", "[::1]:8080"])
def test_the_console_s_own_addresses_are_served(looker: Visitor, host: str) -> None:
    assert looker.get("/", host=host).status == 200


def test_a_name_that_was_allowed_is_served(shared: klamm.Store) -> None:
    visitor = Visitor(shared, allow_hosts=("klamm.example",))
    assert visitor.get("/", host="klamm.example").status == 200
    assert visitor.get("/", host="other.example").status == 421


@pytest.mark.parametrize(
    ("site", "dest", "status"),
    [
        ("cross-site", "image", 403),
        ("cross-site", "iframe", 403),
        ("cross-site", "empty", 403),
        ("same-site", "image", 403),
        ("cross-site", "document", 200),
        ("same-origin", "empty", 200),
        ("none", "document", 200),
    ],
)
def test_what_a_page_of_another_site_embeds_is_not_served(looker: Visitor, site: str, dest: str, status: int) -> None:
    headers = {"sec-fetch-site": site, "sec-fetch-dest": dest}
    assert looker.request("GET", "/api/topics", headers).status == status


@pytest.mark.parametrize("path", sorted(ACTIONS))
@pytest.mark.parametrize(
    ("origin", "csrf"), [(None, True), ("http://evil.example", True), ("null", True), (f"http://{HOST}", False)]
)
def test_a_change_needs_the_console_s_own_origin_and_the_token_of_the_session(
    shared: klamm.Store, path: str, origin: str | None, csrf: bool
) -> None:
    store, editor = shared, Visitor(shared, allow_changes=True)
    before = store["orders"].info().count
    right = editor.csrf("/topics/orders/produce")
    fields = {
        "csrf": right if csrf else "0" * 64,
        "value": "x",
        "group": "billing",
        "to": "earliest",
        "fingerprint": "",
    }
    answer = editor.post(path.replace("{topic}", "orders"), fields, origin=origin)
    assert answer.status == 403
    assert store["orders"].info().count == before
    assert store.groups.describe("billing").lag == 5


@pytest.mark.parametrize("origin", ["null", "http://[", "http://[::1", "", "127.0.0.1:8080"])
def test_an_origin_that_cannot_be_read_is_another_site(looker: Visitor, origin: str) -> None:
    assert looker.get("/topics", origin=origin).status == 403


def test_the_csrf_token_of_another_session_is_refused(editor: Visitor) -> None:
    other = editor.csrf("/topics/orders/produce")
    editor.cookies.clear()
    editor.get("/")
    answer = editor.post("/topics/orders/produce", {"csrf": other, "value": "x"})
    assert answer.status == 403 and "out of date" in answer.words


@pytest.mark.parametrize("path", sorted(ACTIONS))
def test_a_console_that_only_reads_changes_nothing(shared: klamm.Store, path: str) -> None:
    store, visitor = shared, Visitor(shared)
    visitor.get("/")
    token = visitor.app._sessions.csrf_token(visitor.cookies["klamm_console"])  # type: ignore[attr-defined]
    before = {name: store[name].info().count for name in store.topics}
    fields = {"csrf": token, "value": "x", "group": "billing", "to": "earliest"}
    answer = visitor.post(path.replace("{topic}", "orders"), fields)
    assert answer.status == 403 and "--allow-changes" in answer.words
    assert {name: store[name].info().count for name in store.topics} == before


def test_with_a_token_nothing_is_served_before_it_was_given(shared: klamm.Store) -> None:
    visitor = Visitor(shared, token=TOKEN)
    for page in PAGES:
        address = page.path.replace("{topic}", "orders").replace("{partition}", "0").replace("{offset}", "0")
        answer = visitor.get(address)
        assert (answer.status, answer.headers.get("location")) == (303, "/login"), address
        twin = visitor.get(page.api_path.replace("{topic}", "orders"))
        assert twin.status == 401 and b"orders" not in twin.body
    assert visitor.get("/topics/orders/export").status == 303
    assert visitor.get("/events/topics/orders/tail").status == 401
    assert visitor.get("/static/console.css").status == 200


def test_a_visitor_who_gives_the_token_is_let_in(shared: klamm.Store) -> None:
    visitor = Visitor(shared, token=TOKEN)
    token = visitor.csrf("/login")
    wrong = visitor.post("/login", {"csrf": token, "token": TOKEN + "x"})
    assert wrong.status == 403 and visitor.get("/").status == 303
    right = visitor.post("/login", {"csrf": token, "token": TOKEN})
    assert right.status == 303 and "HttpOnly" in right.headers["set-cookie"]
    assert "samesite=strict" in right.headers["set-cookie"].lower()
    assert visitor.get("/").status == 200


def test_a_program_gives_the_token_in_a_header(shared: klamm.Store) -> None:
    visitor = Visitor(shared, token=TOKEN)
    assert visitor.get("/api/overview", authorization=f"Bearer {TOKEN}").json["topics"]
    assert visitor.get("/api/overview", authorization=f"Bearer {TOKEN}x").status == 401


def test_a_session_that_was_made_up_is_not_one(shared: klamm.Store) -> None:
    visitor = Visitor(shared, token=TOKEN)
    visitor.cookies["klamm_console"] = "in-abc.0123456789"
    assert visitor.get("/").status == 303


def test_users_of_the_store_log_in_with_their_passwords(store: klamm.Store) -> None:
    Users(store._acquired().catalog).add("ada", " pass word ")
    assert has_users(store)
    visitor = Visitor(store, has_users=True)
    assert visitor.get("/").headers["location"] == "/login" and visitor.get("/api/overview").status == 401
    token = visitor.csrf("/login")
    for wrong in (("ada", "pass word"), ("bob", " pass word "), ("", "")):
        answer = visitor.post("/login", {"csrf": token, "user": wrong[0], "password": wrong[1], "token": ""})
        assert answer.status == 403 and visitor.get("/").status == 303
    assert visitor.post("/login", {"csrf": token, "user": "ada", "password": " pass word "}).status == 303
    assert visitor.get("/").status == 200


@pytest.mark.parametrize(("given", "status"), [("ada: pass word ", 200), ("ada:x", 401), ("ada", 401), (None, 401)])
def test_a_program_gives_a_user_and_password_in_a_header(store: klamm.Store, given: str | None, status: int) -> None:
    Users(store._acquired().catalog).add("ada", " pass word ")
    visitor = Visitor(store, has_users=True)
    encoded = "?" if given is None else b64encode(given.encode()).decode()
    assert visitor.get("/api/overview", authorization=f"Basic {encoded}").status == status
    if status == 200:  # not where users are not asked for
        assert Visitor(store, token=TOKEN).get("/api/overview", authorization=f"Basic {encoded}").status == 401


def test_a_login_that_cannot_be_read_says_why(shared: klamm.Store) -> None:
    visitor = Visitor(shared, token=TOKEN)
    token = visitor.csrf("/login")
    stale = visitor.post("/login", {"csrf": "0" * 64, "token": TOKEN})
    assert stale.status == 403 and "out of date" in stale.words and "Log in" in stale.words
    large = visitor.post("/login", {"csrf": token, "token": TOKEN, "more": "x" * 5000})
    assert large.status == 413 and "more than 4,096 bytes" in large.words
    assert visitor.get("/").status == 303


def test_a_password_is_looked_at_only_where_it_decides(shared: klamm.Store) -> None:
    visitor, asked = Visitor(shared, has_users=True), list[str]()

    def is_password(user: str, password: str) -> bool:
        asked.append(password)
        return True

    visitor.app._is_password = is_password  # type: ignore[attr-defined]
    basic = {"authorization": f"Basic {b64encode(b'ada:x').decode()}"}
    assert visitor.request("GET", "/api/overview", {**basic, "host": "evil.example"}).status == 421
    assert visitor.request("GET", "/api/overview", {**basic, "origin": "http://evil.example"}).status == 403
    assert visitor.request("GET", "/static/console.css", basic).status == 200
    assert asked == []
    assert visitor.request("GET", "/api/overview", basic).status == 200 and asked == ["x"]


def test_few_passwords_are_looked_at_at_a_time(shared: klamm.Store) -> None:
    visitor, mutex, at_work, most = Visitor(shared, has_users=True), threading.Lock(), 0, 0

    def is_password(user: str, password: str) -> bool:
        nonlocal at_work, most
        with mutex:
            at_work += 1
            most = max(most, at_work)
        time.sleep(0.01)
        with mutex:
            at_work -= 1
        return True

    guard: Guard = visitor.app  # type: ignore[assignment]
    guard._is_password = is_password

    async def ask() -> list[bool]:
        return await asyncio.gather(*(guard.is_user("ada", "x") for _ in range(8)))

    assert asyncio.run(ask()) == [True] * 8 and most <= 2


def test_a_store_without_users_has_none(store: klamm.Store) -> None:
    assert not has_users(store) and not is_password(store, "ada", "x")


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "klamm.example"])
def test_another_address_than_loopback_needs_a_token(host: str) -> None:
    with pytest.raises(klamm.InvalidSetting, match="needs a token"):
        ConsoleOptions(host=host)
    assert ConsoleOptions(host=host, token=TOKEN).token == TOKEN


@pytest.mark.parametrize(
    ("host", "options", "read"),
    [
        ("127.0.0.1", {"token": TOKEN}, ""),
        ("0.0.0.0", {"token": TOKEN}, "its token"),
        ("0.0.0.0", {"has_users": True}, "passwords of users"),
    ],
)
def test_what_others_can_read_on_the_network_is_warned_of(
    store: klamm.Store,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    host: str,
    options: dict[str, Any],
    read: str,
) -> None:
    """There is no TLS."""

    def run(self: uvicorn.Server, sockets: list[socket.socket]) -> None:
        for each in sockets:
            each.close()

    monkeypatch.setattr(uvicorn.Server, "run", run)
    monkeypatch.setattr(child, "_is_ending", threading.Event())  # a process has one console, and this one ends
    run_console(store, "events", ConsoleOptions(host=host, port=0, **options), print)
    assert (f"no encryption, so everyone on the way can read {read}" in caplog.text) is bool(read)


def test_a_short_token_is_refused() -> None:
    with pytest.raises(klamm.InvalidSetting, match="shorter than 12"):
        ConsoleOptions(token="secret")


@pytest.mark.parametrize("address", ["/", "/topics/orders", "/api/overview", "/nothing", "/static/console.js"])
def test_every_response_forbids_what_is_not_the_console_s_own(looker: Visitor, address: str) -> None:
    headers = looker.get(address).headers
    policy = headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self';")
    assert "unsafe" not in policy and "frame-ancestors 'none'" in policy
    assert headers["x-content-type-options"] == "nosniff" and headers["x-frame-options"] == "DENY"


@pytest.mark.parametrize("back", ["https://evil.example/", "//evil.example", "/\\evil.example", "javascript:alert(1)"])
def test_a_change_of_theme_leads_back_to_the_console_only(visitor: Visitor, back: str) -> None:
    answer = visitor.get(f"/theme/dark?back={back}")
    assert (answer.status, answer.headers["location"]) == (303, "/")
    assert 'data-theme="dark"' in visitor.get("/").text
