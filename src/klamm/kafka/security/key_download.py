"""The download of public keys: from the URL that was set and no other, within a time limit.

urllib's timeout is for each read, so a server that sends a byte now and then could hold a thread forever: here,
everything together has to be over within _LIMIT_S.
"""

from __future__ import annotations

import threading
import urllib.request
from contextlib import suppress
from http.client import HTTPConnection, HTTPException, HTTPMessage, HTTPResponse, HTTPSConnection
from socket import SHUT_RDWR, socket
from typing import IO

__all__ = ["download"]

_LIMIT_S = 10.0


def download(url: str, max_bytes: int) -> bytes:
    """Return what is at the URL. Raise OSError, or ValueError if it is too much, or not HTTP."""
    deadline = _Deadline()
    opener = urllib.request.build_opener(_NoRedirects, _Http(deadline), _Https(deadline))
    timer = threading.Timer(_LIMIT_S, deadline.pass_)
    timer.daemon = True
    timer.start()
    try:
        with opener.open(url, timeout=_LIMIT_S) as response:
            data: bytes = response.read(max_bytes + 1)
    except HTTPException as error:
        deadline.check()
        raise ValueError(f"the response is not HTTP: {error!r}") from None
    except (OSError, AttributeError) as error:  # AttributeError: of a socket that was shut down meanwhile
        deadline.check()
        if isinstance(error, TimeoutError) or isinstance(getattr(error, "reason", None), TimeoutError):
            raise deadline.error() from None  # one read, or the connecting, took as long as everything may
        raise
    finally:
        timer.cancel()
    deadline.check()  # else what was cut off could look complete
    if len(data) > max_bytes:
        raise ValueError(f"more than {max_bytes} bytes")
    return data


class _Deadline:
    """Ends the connections of one download."""

    def __init__(self) -> None:
        self._sockets: list[socket] = []
        self._is_over = False

    def pass_(self) -> None:
        """Shut down all connections, and those that are still to come; in the thread of the timer."""
        self._is_over = True
        for connected in [*self._sockets]:
            with suppress(OSError):
                connected.shutdown(SHUT_RDWR)

    def check(self) -> None:
        if self._is_over:
            raise self.error()

    def error(self) -> TimeoutError:
        return TimeoutError(f"it takes more than {_LIMIT_S:g} s")

    def watched(self, kind: type[HTTPConnection]) -> type[HTTPConnection]:
        """Return connections of that kind, which end at the deadline."""

        class Watched(kind):  # type: ignore[valid-type, misc]
            def connect(connection) -> None:  # noqa: N805
                super().connect()
                self._sockets.append(connection.sock)
                self.check()

        return Watched


class _Http(urllib.request.HTTPHandler):
    def __init__(self, deadline: _Deadline) -> None:
        super().__init__()
        self._deadline = deadline

    def http_open(self, request: urllib.request.Request) -> HTTPResponse:
        return self.do_open(self._deadline.watched(HTTPConnection), request)


class _Https(urllib.request.HTTPSHandler):
    def __init__(self, deadline: _Deadline) -> None:
        super().__init__()
        self._deadline = deadline

    def https_open(self, request: urllib.request.Request) -> HTTPResponse:
        return self.do_open(self._deadline.watched(HTTPSConnection), request)


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Follows none: one from https to http would undo what https is for."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage, newurl: str
    ) -> None:
        return None
