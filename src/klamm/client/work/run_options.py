"""The options of `consumer.run`, checked."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias, TypedDict

from klamm.choices import RunErrorPolicy, RunOrder, options_of
from klamm.client.options import is_async
from klamm.errors import InvalidSetting
from klamm.times import Duration, to_seconds

if TYPE_CHECKING:
    from klamm.client.work.outcomes import Attempt
    from klamm.types import RunReport

__all__ = ["ErrorTypes", "RunOptions", "RunSettings"]

ErrorTypes: TypeAlias = type[Exception] | Iterable[type[Exception]]

_CHOICES = {"on_error": RunErrorPolicy, "order": RunOrder}


class RunOptions(TypedDict, total=False):
    """The options that `consumer.run` passes on; RunSettings has the defaults."""

    processes: bool
    queue: int
    timeout: Duration | None
    grace: Duration
    on_error: RunErrorPolicy
    retries: int | None
    retry_on: ErrorTypes | None
    give_up_on: ErrorTypes
    backoff: Duration
    max_backoff: Duration
    dead_letter_topic: str | None
    order: RunOrder
    commit_every: Duration
    on_done: Callable[[Attempt], object] | None
    on_failed: Callable[[Attempt], object] | None
    on_dead_letter: Callable[[Attempt], object] | None
    on_progress: Callable[[RunReport], object] | None


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """The settings of one run; durations are seconds, and types of errors tuples, once it is made."""

    workers: int = 8
    processes: bool = False
    queue: int = 1000
    timeout: Any = None
    grace: Any = 30.0
    on_error: RunErrorPolicy = "stop"
    retries: int | None = 3
    retry_on: Any = None
    give_up_on: Any = ()
    backoff: Any = 0.1
    max_backoff: Any = 10.0
    dead_letter_topic: str | None = None
    order: RunOrder = "key"
    commit_every: Any = 1.0
    on_done: Callable[[Attempt], object] | None = None
    on_failed: Callable[[Attempt], object] | None = None
    on_dead_letter: Callable[[Attempt], object] | None = None
    on_progress: Callable[[RunReport], object] | None = None

    def __post_init__(self) -> None:
        _check_whole("workers", self.workers, 1)
        _check_whole("queue", self.queue, 1)
        if self.retries is not None:
            _check_whole("retries", self.retries, 0)
        for name, choice in _CHOICES.items():
            text, known = getattr(self, name), options_of(choice)
            if text not in known:
                raise InvalidSetting(f"{name}: {text!r} is invalid", hint=f"expected {' or '.join(map(repr, known))}")
        for name in ("grace", "backoff", "max_backoff", "commit_every"):
            self._set(name, to_seconds(name, getattr(self, name)))
        if self.timeout is not None:
            timeout_s = to_seconds("timeout", self.timeout)
            self._set("timeout", None if timeout_s == math.inf else timeout_s)
            if timeout_s == 0:
                raise InvalidSetting("timeout: 0 is invalid", hint="expected more than 0 seconds, or None for no limit")
        for name in ("on_done", "on_failed", "on_dead_letter", "on_progress"):
            _check_hook(name, getattr(self, name))
        self._check_retries()

    def _check_retries(self) -> None:
        if self.on_error == "stop" and (self.retry_on is not None or self.give_up_on != ()):
            raise InvalidSetting(
                "retry_on, give_up_on: on_error='stop' does not retry", hint="use on_error='retry' or 'dead-letter'"
            )
        if self.on_error != "dead-letter":
            for name in ("dead_letter_topic", "on_dead_letter"):
                if getattr(self, name) is not None:
                    raise InvalidSetting(
                        f"{name}: on_error={self.on_error!r} makes no dead letters", hint="use on_error='dead-letter'"
                    )
        self._set("retry_on", (Exception,) if self.retry_on is None else _error_types("retry_on", self.retry_on))
        self._set("give_up_on", _error_types("give_up_on", self.give_up_on))

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    def delay_s(self, error: Exception, attempts: int) -> float | None:
        """Return how long to wait before the next attempt, after so many; None: there is none."""
        if self.on_error == "stop" or (self.retries is not None and attempts > self.retries):
            return None
        if not isinstance(error, self.retry_on) or isinstance(error, self.give_up_on):
            return None
        return float(min(self.max_backoff, self.backoff * 2.0 ** min(attempts - 1, 64)))


def _check_whole(name: str, value: Any, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{name} is a whole number, not {type(value).__name__}")
    if value < least:
        raise InvalidSetting(f"{name}: {value} is invalid", hint=f"expected at least {least}")


def _check_hook(name: str, hook: Any) -> None:
    if hook is None:
        return
    if not callable(hook) or is_async(hook):
        raise TypeError(f"{name} is a plain function, not {type(hook).__name__ if not callable(hook) else 'async'}")


def _error_types(name: str, given: Any) -> tuple[type[Exception], ...]:
    types = (given,) if isinstance(given, type) else tuple(given)
    for each in types:
        if not (isinstance(each, type) and issubclass(each, Exception)):
            raise TypeError(f"{name} has types of exceptions, not {each!r}")
    return types
