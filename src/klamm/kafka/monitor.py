"""A small HTTP server for machines that look after a server.

    /metrics   for Prometheus
    /healthz   200 while clients are served; 503 before that, and while the server drains
    /status    the same, and what there is to know at a glance, as JSON
    /connections   recent requests, as JSON, for clients on this machine that call it by one of its own names; 404
                   unless `request.log.size` is set. See request_log.py

It listens before the server does, so that an early request gets "not yet". It has a thread of its own and at most
_MAX_ASKERS others; further connections are closed. It answers GET and HEAD, keeps no connection, and reads nothing
but a request's head. Who comes in is for monitor_access.py to say.

Promise
  MON1  A connection that has not sent its request _HEAD_S after it began, or has not taken the response within
        _ANSWER_S, is closed: it takes the place of others.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import klamm
from klamm.errors import NotInstalled
from klamm.kafka.addresses import is_loopback, plain, refused, spelled
from klamm.kafka.monitor_access import Access, Request

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from klamm.kafka.broker import Broker

__all__ = ["Monitor"]

_MAX_ASKERS = 16
_TIMEOUT_S = 5.0
_HEAD_S = 5.0
_ANSWER_S = 60.0
_LOOK_S = 0.5  # how often it is looked who is late
_OWN_NAMES = ("localhost", "127.0.0.1", "::1")


class Monitor:
    """Listens from the start, on a thread; `ready` and `draining` tell it how the server is doing."""

    def __init__(self, host: str, port: int, access: Access | None = None) -> None:
        """Listen. Without `access`, each client that reaches the port is let in."""
        self.access = access
        try:
            import prometheus_client  # noqa: F401  # optional: said now rather than at the first scrape
        except ImportError:
            raise NotInstalled(
                "metrics: prometheus-client is not installed",
                name="prometheus_client",
                hint="pip install 'klamm[server]'",
            ) from None
        self.state = "starting"
        self._started = time.monotonic()
        self._broker: Broker | None = None
        self._registry: CollectorRegistry | None = None
        self._kafka_address = ""
        try:
            self._server = _Server(self, host, port)
        except OSError as error:
            raise refused(error, "metrics", host, port) from None
        self.address = spelled(host, self._server.server_address[1])
        self.is_loopback = is_loopback(str(self._server.server_address[0]))
        """Whether only this machine can connect."""
        self._thread = threading.Thread(target=self._run, name="klamm-monitor", daemon=True)
        self._thread.start()

    def ready(self, broker: Broker, address: str) -> None:
        """Record that the server listens at `address`."""
        from klamm.kafka.collector import registry

        if self.access is not None:
            self.access.broker = broker
        self._registry = registry(broker, address)
        self._broker, self._kafka_address = broker, address
        self.state = "ready"

    def draining(self) -> None:
        self.state = "draining"

    def _run(self) -> None:
        while self.state != "stopped":
            self._server.handle_request()
            self._server.close_late()

    def close(self) -> None:
        """Close the monitor, after the server has stopped."""
        self.state = "stopped"
        host, port, *_ = self._server.server_address
        try:
            socket.create_connection((str(host), port), _TIMEOUT_S).close()  # wakes the thread
        except OSError:  # its queue is full: it is awake
            pass
        self._thread.join()
        self._server.server_close()

    # ---- what is answered

    def answer(self, path: str, host: str, peer: str) -> tuple[int, str, bytes]:
        """Return status, type and body. `host`: the name that the client has called us by; `peer`: its address."""
        path = path.partition("?")[0]
        if path == "/healthz":
            return self._code, "text/plain; charset=utf-8", f"{self.state}\n".encode()
        if path == "/status":
            return 200, "application/json", (json.dumps(self.status(), indent=2) + "\n").encode()
        if path == "/connections" and self._broker is not None and self._broker.request_log is not None:
            if host not in _OWN_NAMES or not is_loopback(peer):  # a page elsewhere whose name leads here, another host
                return 421, "text/plain; charset=utf-8", b"requests are shown to this machine alone\n"
            shown = {"connections": self._broker.request_log.describe()}
            return 200, "application/json", (json.dumps(shown) + "\n").encode()
        if path == "/metrics":
            if self._registry is None:
                return 503, "text/plain; charset=utf-8", f"{self.state}\n".encode()
            from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest

            return 200, CONTENT_TYPE_PLAIN_0_0_4, generate_latest(self._registry)
        return 404, "text/plain; charset=utf-8", b"there are /metrics, /healthz and /status\n"

    @property
    def _code(self) -> int:
        return 200 if self.state == "ready" else 503

    def status(self) -> dict[str, Any]:
        """Return the contents of /status."""
        status: dict[str, Any] = {
            "state": self.state,
            "version": klamm.__version__,
            "pid": os.getpid(),
            "uptime_s": round(time.monotonic() - self._started, 3),
        }
        broker = self._broker
        if broker is not None:
            metrics = broker.metrics
            status |= {
                "address": self._kafka_address,
                "store": broker.core.path,
                "store_id": broker.cluster_id,
                "node_id": broker.node_id,
                "connections": metrics.connections,
                "requests": sum(timings.count for timings in list(metrics.requests.values())),
                "delayed_fetches": metrics.delayed_fetches,
                "queued_bytes": metrics.queued_bytes,
            }
        return status


def _name_of(host: str) -> str:
    """Return the name or address in a Host header."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


class _Server(HTTPServer):
    request_queue_size = 64
    allow_reuse_address = True

    def __init__(self, monitor: Monitor, host: str, port: int) -> None:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        self.address_family, *_, address = found[0]
        self.monitor = monitor
        self._connections = threading.Semaphore(_MAX_ASKERS)
        self._deadlines: dict[socket.socket, float] = {}
        self.timeout = _LOOK_S
        super().__init__((str(address[0]), int(address[1])), _Handler)

    def server_bind(self) -> None:
        """Bind without the base class's question to the DNS for our own name."""
        if self.allow_reuse_address:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._connections.acquire(blocking=False):
            self.shutdown_request(request)
            return
        self._deadlines[request] = time.monotonic() + _HEAD_S
        threading.Thread(target=self._answer, args=(request, client_address), daemon=True).start()

    def _answer(self, request: socket.socket, client_address: Any) -> None:
        connection = request
        try:
            request.settimeout(_TIMEOUT_S)
            if self.monitor.access is not None:
                connection = self.monitor.access.wrap(request)
                self._deadlines[connection] = self._deadlines.pop(request)
                self.monitor.access.begin(connection)
            self.finish_request(connection, client_address)
        except (OSError, ValueError):  # it went away, took too long, or its handshake failed
            pass
        finally:
            self._deadlines.pop(request, None)
            self._deadlines.pop(connection, None)
            self.shutdown_request(connection)
            self._connections.release()

    def begins(self, connection: socket.socket) -> None:
        """Note that the request is there, and is being answered."""
        self._deadlines[connection] = time.monotonic() + _ANSWER_S

    def close_late(self) -> None:
        """Close the connections that take too long; their threads end with that."""
        now = time.monotonic()
        for connection, deadline in list(self._deadlines.items()):
            if deadline < now:
                with suppress(OSError):
                    socket.socket.shutdown(connection, socket.SHUT_RDWR)


class _Handler(BaseHTTPRequestHandler):
    timeout = _TIMEOUT_S
    server: _Server

    def do_GET(self) -> None:
        self.server.begins(self.connection)
        peer, port = plain(self.client_address)
        monitor, asks = self.server.monitor, ""
        refused = None
        if monitor.access is not None and self.path.partition("?")[0] != "/healthz":
            request = Request(self.connection, peer, port, self.headers.get("Authorization", ""))
            refused = monitor.access.check(request)
        if refused is not None:
            status, kind, body = refused.status, "text/plain; charset=utf-8", f"{refused.why}\n".encode()
            asks = refused.asks
        else:
            status, kind, body = monitor.answer(self.path, _name_of(self.headers.get("Host", "")), peer)
        self.send_response(status)
        if asks:
            self.send_header("WWW-Authenticate", asks)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_HEAD = do_GET  # noqa: N815  # as the base class wants it

    def version_string(self) -> str:
        return "klamm"

    def log_message(self, *_: object) -> None:
        """Log nothing for a scrape."""
