"""A log that clients cannot flood: so many lines a second, then the number of those that were left out."""

from __future__ import annotations

import logging
from collections.abc import Callable

__all__ = ["LimitedLog"]

LINES_PER_S = 20


class LimitedLog:
    """Lines about one thing (`what`), for one thread."""

    def __init__(self, log: logging.Logger, what: str, now: Callable[[], float]) -> None:
        self._log = log
        self._what = what
        self._now = now
        self._second = 0
        self._lines = 0

    def warning(self, message: str, *args: object, exc_info: bool = False) -> None:
        """Write one line, unless there were too many in this second."""
        self._write(logging.WARNING, message, *args, exc_info=exc_info)

    def exception(self, message: str, *args: object) -> None:
        """Like `warning`, of an exception that is being handled, with its traceback: an error of the server."""
        self._write(logging.ERROR, message, *args, exc_info=True)

    def _write(self, level: int, message: str, *args: object, exc_info: bool) -> None:
        second = int(self._now())
        if second != self._second:
            if self._lines > LINES_PER_S:
                self._log.warning("%d more lines about %s were left out", self._lines - LINES_PER_S, self._what)
            self._lines, self._second = 0, second
        self._lines += 1
        if self._lines <= LINES_PER_S:
            self._log.log(level, message, *args, exc_info=exc_info)
