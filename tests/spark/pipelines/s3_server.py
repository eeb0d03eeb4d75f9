"""moto's S3 server in a process of its own, with faults on request: errors, lost responses, and kills of its client.

python s3_server.py        prints its port, and ends with its standard input

A fault is set by POST /_faults, as JSON (`Faults`). A request that is at fault is answered by 500, or by 503 SlowDown;
or its connection is closed, before it is carried out or afterwards: the response is lost.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterable
from typing import Any

from moto.moto_server.werkzeug_app import (
    DomainDispatcherApplication,
    MotoRequestHandler,
    create_backend_app,
)
from werkzeug.serving import make_server

CHANGES = ("PUT", "POST", "DELETE")
ERRORS = {"500": "500 Internal Server Error", "503": "503 Slow Down"}
BODY = b"<Error><Code>%s</Code><Message>injected</Message></Error>"


class Faults:
    """What goes wrong next.

    rate, seed     each request, with that probability, in one of the ways that `kinds` names
    rule           {"method": "PUT", "path": "journal.json", "kind": "lost", "times": 1}
    kill           {"pid": 4711, "at": 3, "is_done": true}: at the third change, after it is carried out
    """

    def __init__(self) -> None:
        self.set({})

    def set(self, faults: dict[str, Any]) -> None:
        self.rate, self.dice = faults.get("rate", 0.0), random.Random(faults.get("seed", 0))
        self.kinds = faults.get("kinds", ["500", "503", "reset", "lost"])
        self.rule, self.kill = faults.get("rule"), faults.get("kill")
        self.changes = 0
        self.injected = 0

    def kind(self, method: str, path: str) -> str | None:
        rule = self.rule
        if rule and rule["times"] and method == rule["method"] and rule["path"] in path:
            rule["times"] -= 1
            return str(rule["kind"])
        return self.dice.choice(self.kinds) if self.dice.random() < self.rate else None

    def dies(self, method: str, *, is_done: bool) -> None:
        """Kill the client if its time has come."""
        kill = self.kill
        if kill and method in CHANGES and self.changes == kill["at"] and is_done == kill["is_done"]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(kill["pid"], signal.SIGKILL)


class App:
    """moto, one request at a time: what it does under a condition is then one step."""

    def __init__(self) -> None:
        self.moto: Any = DomainDispatcherApplication(create_backend_app)
        self.faults = Faults()
        self.lock = threading.Lock()

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        method, path = environ["REQUEST_METHOD"], environ["PATH_INFO"]
        if path == "/_faults":
            return self.control(environ, start_response)
        with self.lock:
            kind = self.faults.kind(method, path)
            self.faults.changes += method in CHANGES
            self.faults.injected += kind is not None
            self.faults.dies(method, is_done=False)
            if kind in ERRORS:
                environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
                start_response(ERRORS[kind], [("Content-Type", "application/xml")])
                return [BODY % (b"SlowDown" if kind == "503" else b"InternalError")]
            if kind == "reset":
                return self.hang_up(environ, start_response)
            answer = list(self.moto(environ, start_response))
            self.faults.dies(method, is_done=True)
            return self.hang_up(environ, None) if kind == "lost" else answer

    def hang_up(self, environ: dict[str, Any], start_response: Callable[..., Any] | None) -> Iterable[bytes]:
        with contextlib.suppress(OSError):
            environ["werkzeug.socket"].shutdown(socket.SHUT_RDWR)
        if start_response is not None:
            start_response("500 Internal Server Error", [])
        return [b""]

    def control(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        size = int(environ.get("CONTENT_LENGTH") or 0)
        with self.lock:
            if size:
                self.faults.set(json.loads(environ["wsgi.input"].read(size)))
            answer = {"changes": self.faults.changes, "injected": self.faults.injected}
        start_response("200 OK", [("Content-Type", "application/json")])
        return [json.dumps(answer).encode()]


def main() -> None:
    class Quiet(MotoRequestHandler):
        def log(self, *_: Any) -> None:
            pass

    server = make_server("127.0.0.1", 0, App(), threaded=True, request_handler=Quiet)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(server.server_address[1], flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
