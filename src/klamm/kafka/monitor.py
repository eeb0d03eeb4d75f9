"""A small HTTP server for machines that look after a server.

    /metrics   for Prometheus
    /healthz   200 while clients are served; 503 before that, and while the server drains
    /status    the same, and what there is to know at a glance, as JSON

It listens before the server does, so that an early request gets "not yet". It has a thread of its own and at most
_MAX_ASKERS others; further connections are closed. It answers GET and HEAD, keeps no connection, reads nothing
but a request's head, and waits at most _TIMEOUT_S seconds for the next byte of it.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import TYPE_CHECKING, Any

import klamm
from klamm.errors import NotInstalled
from klamm.kafka.addresses import refused, spelled

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from klamm.kafka.broker import Broker

__all__ = ["Monitor"]

_MAX_ASKERS = 16
_TIMEOUT_S = 5.0


class Monitor:
    """Listens from the start, on a thread; `ready` and `draining` tell it how the server is doing."""

    def __init__(self, host: str, port: int) -> None:
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
        self._thread = threading.Thread(target=self._run, name="klamm-monitor", daemon=True)
        self._thread.start()

    def ready(self, broker: Broker, address: str) -> None:
        """The server listens at `address`."""
        from klamm.kafka.collector import registry

        self._registry = registry(broker, address)
        self._broker, self._kafka_address = broker, address
        self.state = "ready"

    def draining(self) -> None:
        self.state = "draining"

    def _run(self) -> None:
        while self.state != "stopped":
            self._server.handle_request()

    def close(self) -> None:
        """After the server has stopped."""
        self.state = "stopped"
        host, port, *_ = self._server.server_address
        try:
            socket.create_connection((str(host), port), _TIMEOUT_S).close()  # wakes the thread
        except OSError:  # its queue is full: it is awake
            pass
        self._thread.join()
        self._server.server_close()

    # ---- what is answered

    def answer(self, path: str) -> tuple[int, str, bytes]:
        """Status, type and body."""
        path = path.partition("?")[0]
        if path == "/healthz":
            return self._code, "text/plain; charset=utf-8", f"{self.state}\n".encode()
        if path == "/status":
            return 200, "application/json", (json.dumps(self.status(), indent=2) + "\n").encode()
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
        """What /status says."""
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


class _Server(HTTPServer):
    request_queue_size = 64
    allow_reuse_address = True

    def __init__(self, monitor: Monitor, host: str, port: int) -> None:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        self.address_family, *_, address = found[0]
        self.monitor = monitor
        self._connections = threading.Semaphore(_MAX_ASKERS)
        super().__init__((str(address[0]), int(address[1])), _Handler)

    def server_bind(self) -> None:
        """Without the base class's question to the DNS for our own name."""
        if self.allow_reuse_address:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._connections.acquire(blocking=False):
            self.shutdown_request(request)
            return
        threading.Thread(target=self._answer, args=(request, client_address), daemon=True).start()

    def _answer(self, request: Any, client_address: Any) -> None:
        try:
            self.finish_request(request, client_address)
        except OSError:  # it went away, or took too long
            pass
        finally:
            self.shutdown_request(request)
            self._connections.release()


class _Handler(BaseHTTPRequestHandler):
    timeout = _TIMEOUT_S
    server: _Server

    def do_GET(self) -> None:
        status, kind, body = self.server.monitor.answer(self.path)
        self.send_response(status)
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
