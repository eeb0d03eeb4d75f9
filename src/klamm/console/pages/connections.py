"""Connections of the Kafka server, and their recent requests, decoded: to see what a client really asks for.

The server shows them at its metrics port (`request.log.size`), without values, passwords or other bytes; the console
asks for them there, at the address that --server names.
"""

from __future__ import annotations

import json
import ssl
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlencode
from urllib.request import HTTPSHandler, ProxyHandler, Request, build_opener

from klamm.console import text
from klamm.console.context import Console, Visit
from klamm.console.errors import RequestError
from klamm.console.options import is_loopback
from klamm.console.pages.frame import Page, badge, cell, note, table
from klamm.console.pages.record_html import json_tree
from klamm.html import Html, el, join

__all__ = ["CONNECTIONS", "count_connections"]

_TIMEOUT_S = 3.0
_COUNT_TIMEOUT_S = 0.5
_MOST_BYTES = 8 << 20


def _serve_line(console: Console) -> str:
    """Return the command that starts a server whose connections the console shows."""
    options = ("--console", 8080, "--metrics", 9644, "--set", "request.log.size=50")
    return text.command("klamm", "serve", console.path, *options)


def read_connections(console: Console, visit: Visit) -> dict[str, Any]:
    """Return the connections that have sent a request; of the chosen one, its recent requests."""
    server = console.options.server
    if not server:
        return {"server": None, "connections": [], "peer": None, "requests": []}
    rows = _fetch(console)
    peer = visit.one("peer")
    chosen: list[dict[str, Any]] = next((row["requests"] for row in rows if row["peer"] == peer), [])
    for row in rows:
        latest = row.pop("requests")
        row |= {"last": latest[0] if latest else None, "shown": len(latest)}
        if row["last"]:
            row["last"] = {name: row["last"].get(name) for name in ("time_ms", "api", "version", "problem")}
    return {"server": server.partition("://")[2], "connections": rows, "peer": peer or None, "requests": chosen}


def count_connections(console: Console) -> int | None:
    """Return how many connections have sent a request to the server; None if it is not known, or does not answer."""
    try:
        return len(_fetch(console, _COUNT_TIMEOUT_S)) if console.options.server else None
    except RequestError:
        return None


def _fetch(console: Console, timeout_s: float = _TIMEOUT_S) -> list[dict[str, Any]]:
    address, token = f"{console.options.server}/connections", console.options.server_token
    request = Request(address, headers={"Authorization": f"Bearer {token}"} if token else {})
    context = ssl.create_default_context()
    if token and is_loopback(request.host.rpartition(":")[0]):  # its certificate need not have the name of this machine
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        opener = build_opener(ProxyHandler({}), HTTPSHandler(context=context))
        with opener.open(request, timeout=timeout_s) as response:
            body = response.read(_MOST_BYTES)
        rows = json.loads(body)["connections"]
    except HTTPError as error:
        if error.code == 404:
            hint = f"restart the server as {_serve_line(console)}"
            raise RequestError(503, f"{address}: the server keeps no requests", hint) from None
        if error.code in (401, 403):
            hint = (
                f"the metrics port has logins, and lets in the console that the server starts: {_serve_line(console)}"
            )
            raise RequestError(503, f"{address}: {error}", hint) from None
        raise RequestError(503, f"{address}: {error}") from None
    except (URLError, OSError) as error:
        why = error.reason if isinstance(error, URLError) else error
        hint = "check that klamm serve runs, with --metrics at that address"
        raise RequestError(503, f"{address}: the server does not answer: {why}", hint) from None
    except (ValueError, KeyError, TypeError):
        hint = "check that --server names the metrics port of klamm serve"
        raise RequestError(503, f"{address}: not the response of a Klamm server", hint) from None
    assert isinstance(rows, list)
    return rows


def render_connections(console: Console, visit: Visit, data: dict[str, Any]) -> Html:
    if data["server"] is None:
        why = "The console knows no server. Start it with one that keeps recent requests:"
        line = el("code", _serve_line(console), class_="line")
        return join([el("h1", "Connections"), el("p", why, class_="quiet"), el("p", line)])
    rows = [
        el(
            "tr",
            cell(el("a", row["peer"], href=f"/connections?{urlencode({'peer': row['peer']})}"), kind="name mono"),
            cell(row["client_id"] or "–", kind="mono"),
            cell(row["principal"], kind="mono"),
            cell(badge("TLS", "good") if row["is_encrypted"] else el("span", "plain", class_="quiet")),
            cell(_api(row["last"]) if row["last"] else "–"),
            cell(text.moment(row["last"]["time_ms"]) if row["last"] else "–", kind="fit mono"),
            data_key=f"connection {row['peer']}",
        )
        for row in data["connections"]
    ]
    return join(
        [
            el("h1", "Connections", el("small", f"of the server at {data['server']}")),
            table(
                ("client", "client id", "principal", "transport", "last request", "at"),
                rows,
                caption="Connections",
                empty="No connection has sent a request yet.",
            ),
            _requests(data) if data["peer"] else note("A client's name leads to its recent requests."),
        ]
    )


def _api(row: dict[str, Any]) -> str:
    return f"{row['api']} v{row['version']}" if row.get("api") else str(row.get("problem") or "unknown")


def _requests(data: dict[str, Any]) -> Html:
    rows = [
        el(
            "tr",
            cell(text.moment(row["time_ms"])[11:], kind="fit mono"),
            cell(_api(row), kind="name fit"),
            cell(row.get("correlation_id", "–"), kind="n"),
            cell(text.size(row["bytes"]), kind="n"),
            cell(_decoded(row), kind="value"),
            data_key=f"request {number}",
        )
        for number, row in enumerate(data["requests"])
    ]
    return join(
        [
            el("h2", f"Recent requests of {data['peer']}, the latest first"),
            el("p", "Records, passwords and other bytes are shown as their size.", class_="quiet"),
            table(
                ("at", "request", "correlation id", "size", "decoded"),
                rows,
                caption="Recent requests",
                empty="This client is gone, and what it sent with it.",
                numeric="  nn ",
            ),
        ]
    )


def _decoded(row: dict[str, Any]) -> Html:
    if "request" not in row:
        return el("span", row.get("problem") or "too large to be shown", class_="quiet")
    try:
        return el("div", json_tree(row["request"]), class_="json plain")
    except ValueError:
        return el("pre", json.dumps(row["request"], indent=1))


CONNECTIONS = Page(
    "/connections",
    title=lambda visit: "Connections",
    read=read_connections,
    render=render_connections,
    command=lambda console, visit: (
        text.command("curl", f"{console.options.server}/connections")
        if console.options.server
        else console.command("who")
    ),
    is_same=False,  # without a server, it is the closest there is
    is_live=True,
)
