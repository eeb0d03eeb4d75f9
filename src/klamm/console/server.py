"""Run a console until it is told to stop: a process of its own, which never slows the log down."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING

from klamm.console.options import is_loopback
from klamm.errors import InvalidSetting, NotInstalled

if TYPE_CHECKING:
    from klamm.api import Store
    from klamm.console.options import ConsoleOptions

__all__ = ["run_console"]

_GRACE_S = 5  # that requests may take when it ends

_log = logging.getLogger("klamm.console")


def run_console(store: Store, path: str, options: ConsoleOptions, on_ready: Callable[[str], object]) -> None:
    """Serve the store's pages until SIGINT or SIGTERM. `on_ready` is called with the address once visitors can come."""
    try:
        import uvicorn

        from klamm.console.app import create_app
    except ImportError as error:
        raise NotInstalled.package(error.name or "starlette", "'klamm[console]'") from None
    from klamm.console.child import end_children
    from klamm.console.context import Console
    from klamm.console.history import Recorder
    from klamm.console.sampler import Sampler

    listener = _listen(options)
    if options.needs_login and not is_loopback(options.host):
        what = "passwords of users" if options.has_users else "its token"
        _log.warning(
            "klamm console at %s, beyond this machine: there is no encryption, so everyone on the way can read %s"
            " (put a proxy with TLS in front, and let the console listen at 127.0.0.1)",
            options.host,
            what,
        )
    sampler = Sampler(store, on_look=Recorder(store).record if options.record else None)
    console = Console(store, path, options, sampler)

    host, port = listener.getsockname()[:2]
    address = f"http://{f'[{host}]' if ':' in host else host}:{port}/"

    class Server(uvicorn.Server):
        """The web server: reports that it is ready once it handles signals, and ends live pages when one arrives."""

        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets=sockets)
            on_ready(address)

        def handle_exit(self, sig: int, frame: FrameType | None) -> None:
            console.is_ending.set()
            end_children()
            super().handle_exit(sig, frame)

    config = uvicorn.Config(
        create_app(console),
        log_level="warning",
        access_log=False,
        server_header=False,
        ws="none",
        lifespan="off",
        timeout_graceful_shutdown=_GRACE_S,
        limit_concurrency=500,
    )
    server = Server(config)
    sampler.start()
    try:
        server.run(sockets=[listener])
    finally:
        end_children()
        sampler.stop()


def _listen(options: ConsoleOptions) -> socket.socket:
    family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((options.host, options.port))
    except OSError as error:
        listener.close()
        where = f"{options.host}:{options.port}"
        raise InvalidSetting(
            f"cannot listen at {where}: {error.strerror or error}", hint="say another --port"
        ) from None
    listener.listen(128)
    return listener
