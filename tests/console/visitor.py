"""A visitor of a console's application, without a socket: requests in, responses out."""

from __future__ import annotations

import asyncio
import json
import re
from html import unescape
from typing import Any, NamedTuple
from urllib.parse import urlencode

from klamm.console.app import create_app
from klamm.console.context import Console
from klamm.console.options import ConsoleOptions
from klamm.console.sampler import Sampler

HOST = "127.0.0.1:8080"


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def words(self) -> str:
        """What a reader sees: without tags, spaces as one."""
        return re.sub(r"\s+", " ", unescape(re.sub(r"<[^>]*>", " ", self.text)))


class Visitor:
    """A browser with a cookie jar, and nothing else."""

    def __init__(self, store: Any, path: str = "events", **options: Any) -> None:
        self.sampler = Sampler(store)
        self.console = Console(store, path, ConsoleOptions(**options), self.sampler)
        self.app = create_app(self.console)
        self.cookies: dict[str, str] = {}
        self.expected: type[Exception] | None = None
        """The exception that a server would log after the response."""

    def request(self, method: str, address: str, headers: dict[str, str] | None = None, body: bytes = b"") -> Answer:
        path, _, query = address.partition("?")
        given = {"host": HOST, **(headers or {})}
        if self.cookies:
            given["cookie"] = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        scope = {
            "type": "http",
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "root_path": "",
            "headers": [(name.lower().encode(), value.encode("latin-1")) for name, value in given.items()],
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 8080),
        }
        answer = asyncio.run(self._call(scope, body))
        for name, value in re.findall(r"(klamm_\w+)=([^;\n]*)", answer.headers.get("set-cookie", "")):
            self.cookies[name] = value
        return answer

    async def _call(self, scope: dict[str, Any], body: bytes) -> Answer:
        status, headers, parts = 0, dict[str, str](), list[bytes]()
        sent = False

        async def receive() -> dict[str, Any]:
            nonlocal sent
            if sent:
                await asyncio.sleep(3600)
            sent = True
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: Any) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                for name, value in message["headers"]:
                    key = name.decode()
                    headers[key] = f"{headers[key]}\n{value.decode()}" if key in headers else value.decode()
            else:
                parts.append(message.get("body", b""))

        try:
            await asyncio.wait_for(self.app(scope, receive, send), 60)
        except Exception as error:
            if self.expected is None or not isinstance(error, self.expected) or not status:
                raise
        return Answer(status, headers, b"".join(parts))

    def get(self, address: str, **headers: str) -> Answer:
        return self.request("GET", address, headers)

    def csrf(self, address: str) -> str:
        """Return the CSRF token of a page with a form."""
        found = re.search(r'name="csrf" value="(\w+)"', self.get(address).text)
        assert found, f"{address}: has no form that changes anything"
        return found[1]

    def post(self, address: str, fields: dict[str, str], *, origin: str | None = f"http://{HOST}") -> Answer:
        headers = {"content-type": "application/x-www-form-urlencoded"}
        if origin is not None:
            headers["origin"] = origin
        return self.request("POST", address, headers, urlencode(fields).encode())
