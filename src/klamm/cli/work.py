"""`klamm work`: a handler as a service: `consumer.run` (client/work/workers.py) until a signal comes.

stdout   at the end, what came of the records
stderr   the log, in the form of `klamm serve`; what the handler itself logs is in it
signals  SIGTERM, SIGINT: let handlers that run end, commit what is done, exit 0. A second one: exit at once
exit     0 ended by a signal, or by --wait · 1 a handler failed, or its module cannot be imported
         2 a wrong option, or no such module or function · 3 the store is damaged
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections import deque
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from klamm.cli.output import OutputOption
from klamm.cli.records import parse_seconds
from klamm.cli.stores import OffsetResetOption, StoreOption, opened, some_groups, some_topics
from klamm.client.options import choice
from klamm.errors import InvalidSetting, KlammError
from klamm.store.names import nearest

if TYPE_CHECKING:
    from klamm.client.work.outcomes import Attempt
    from klamm.types import RunReport

__all__ = ["work"]

_TARGET = "MODULE:FUNCTION, such as app:charge"


def work(
    handler: Annotated[
        str,
        typer.Argument(
            metavar="MODULE:FUNCTION",
            help="The handler, called with each record; a def or an async def. Modules are searched here, too.",
            show_default=False,
        ),
    ],
    topics: Annotated[
        list[str],
        typer.Argument(metavar="TOPIC...", help="The topics.", show_default=False, autocompletion=some_topics),
    ],
    group: Annotated[
        str,
        typer.Option(
            "-g",
            "--group",
            metavar="GROUP",
            help="The group whose offsets are committed; its members share the partitions.",
            show_default=False,
            autocompletion=some_groups,
        ),
    ],
    store: StoreOption = None,
    auto_offset_reset: OffsetResetOption = None,
    workers: Annotated[int, typer.Option("-w", "--workers", metavar="N", help="Records handled at a time.", min=1)] = 8,
    processes: Annotated[bool, typer.Option("--processes", help="Workers are processes, not threads.")] = False,
    timeout: Annotated[
        str | None, typer.Option(metavar="TIME", help="Time limit for each record: 30s, 5m. [default: none]")
    ] = None,
    grace: Annotated[
        str, typer.Option(metavar="TIME", help="Time for running handlers to end at a signal or a rebalance.")
    ] = "30s",
    on_error: Annotated[
        str, typer.Option(metavar="POLICY", help="Action when the handler raises: stop, retry or dead-letter.")
    ] = "stop",
    retries: Annotated[int, typer.Option(metavar="N", help="Number of retries, for retry and dead-letter.", min=0)] = 3,
    retry_on: Annotated[
        list[str] | None,
        typer.Option(metavar="TYPE", help="Retry these errors only: TimeoutError, app:Busy; may be repeated."),
    ] = None,
    give_up_on: Annotated[
        list[str] | None, typer.Option(metavar="TYPE", help="Do not retry these errors; may be repeated.")
    ] = None,
    backoff: Annotated[
        str, typer.Option(metavar="TIME", help="Wait before the first retry; doubled each time.")
    ] = "100ms",
    max_backoff: Annotated[str, typer.Option(metavar="TIME", help="Longest wait before a retry.")] = "10s",
    dead_letter_topic: Annotated[
        str | None, typer.Option(metavar="TOPIC", help="Where dead letters go. [default: TOPIC.dlq]")
    ] = None,
    order: Annotated[
        str, typer.Option(metavar="ORDER", help="Scope of the order: the records of a key, or of a partition.")
    ] = "key",
    serde: Annotated[
        str | None,
        typer.Option(metavar="SERDE", help="Decoding of keys and values: json or str. [default: bytes]"),
    ] = None,
    wait: Annotated[
        str | None, typer.Option(metavar="TIME", help="End when no record comes for this time. [default: never]")
    ] = None,
    progress_every: Annotated[str, typer.Option(metavar="TIME", help="Interval of progress lines in the log.")] = "10s",
    log_format: Annotated[str, typer.Option(metavar="FORMAT", help="How the log is written: text or json.")] = "text",
    log_level: Annotated[str, typer.Option(metavar="LEVEL", help="debug, info, warning or error.")] = "info",
    *,
    out: OutputOption,
) -> None:
    """Call a Python function with each record, as a service. SIGTERM and SIGINT end it."""
    from klamm.cli.notify import notify
    from klamm.kafka.logs import FORMATS, LEVELS, event, to_stderr

    to_stderr(
        choice("--log-format", log_format, dict(zip(FORMATS, FORMATS, strict=True))),
        choice("--log-level", log_level, dict(zip(LEVELS, LEVELS, strict=True))),
    )
    logging.getLogger().setLevel(log_level.upper())  # the handler's own log, too
    options: dict[str, Any] = {
        "processes": processes,
        "timeout": None if timeout is None else parse_seconds(timeout, "--timeout"),
        "grace": parse_seconds(grace, "--grace"),
        "on_error": on_error,
        "retries": retries,
        "backoff": parse_seconds(backoff, "--backoff"),
        "max_backoff": parse_seconds(max_backoff, "--max-backoff"),
        "dead_letter_topic": dead_letter_topic,
        "order": order,
    }
    wait_s = None if wait is None else parse_seconds(wait, "--wait")
    log = _Log(parse_seconds(progress_every, "--progress-every"), workers)
    sys.path.insert(0, os.getcwd())
    function = _load(handler)
    if not callable(function):
        raise InvalidSetting(f"{handler}: not a function but {type(function).__name__}", hint=f"expected {_TARGET}")
    if retry_on:
        options["retry_on"] = [_error_type(name, "--retry-on") for name in retry_on]
    if give_up_on:
        options["give_up_on"] = [_error_type(name, "--give-up-on") for name in give_up_on]
    if on_error == "dead-letter":
        options["on_dead_letter"] = log.dead_lettered
    checked: dict[str, Any] = {"serde": serde, "auto_offset_reset": auto_offset_reset}  # by the consumer
    with opened(store) as events, events.consumer(topics, group=group, wait=wait_s, **checked) as consumer:
        event("working", handler=handler, topics=",".join(topics), group=group, workers=workers, store=events.path)
        notify("READY=1", f"STATUS=handling {', '.join(topics)} by {handler}")
        try:
            report = consumer.run(function, workers, on_failed=log.failed, on_progress=log.progress, **options)
        except Exception as error:
            attempt = log.attempt_of(error)
            if attempt is None:
                raise
            raise _handler_failed(attempt) from error
        finally:
            notify("STOPPING=1")
        event("stopped", **_counts(report))
    out.print_object(_counts(report))


def _counts(report: RunReport) -> dict[str, Any]:
    return {name: getattr(report, name) for name in report.__dataclass_fields__}


# ---- the log


class _Log:
    """The log of a run: failures, dead letters, progress."""

    def __init__(self, every_s: float, workers: int) -> None:
        self._every_s = every_s
        self._logged_at = time.monotonic()
        self._logged_done = 0
        self._failures: deque[Attempt] = deque(maxlen=2 * workers)  # of workers that failed at the same time

    def failed(self, attempt: Attempt) -> None:
        from klamm.kafka.logs import event

        if attempt.retry_in is None:
            self._failures.append(attempt)
            event("handler failed", logging.ERROR, **_fields(attempt), error=attempt.error)
        else:
            event("handler failed", logging.WARNING, **_fields(attempt), retry_in=round(attempt.retry_in, 3))

    def attempt_of(self, error: Exception) -> Attempt | None:
        """Return the attempt whose error ended the run; None if it was not an error of the handler."""
        return next((attempt for attempt in list(self._failures) if attempt.error is error), None)

    def dead_lettered(self, attempt: Attempt) -> None:
        from klamm.kafka.logs import event

        event("dead letter", logging.WARNING, **_fields(attempt))

    def progress(self, report: RunReport) -> None:
        from klamm.kafka.logs import event

        seconds = time.monotonic() - self._logged_at
        if seconds >= self._every_s:
            rate = (report.done - self._logged_done) / max(seconds, 0.001)
            self._logged_at, self._logged_done = time.monotonic(), report.done
            event("progress", **_counts(report), per_second=round(rate, 1))


def _fields(attempt: Attempt) -> dict[str, Any]:
    record = attempt.record
    return {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "attempt": attempt.number,
        "seconds": round(attempt.seconds, 3),
        "reason": f"{type(attempt.error).__name__}: {attempt.error}",
    }


def _handler_failed(attempt: Attempt) -> KlammError:
    record = attempt.record
    return KlammError(
        f"{record.topic}/{record.partition} at offset {record.offset}:"
        f" the handler failed: {type(attempt.error).__name__}: {attempt.error}",
        hint="what is done is committed; --on-error dead-letter goes on",
    )


# ---- names of Python objects


def _load(target: str) -> Any:
    """Return what MODULE:NAME names."""
    module_name, _, path = target.partition(":")
    if not module_name or not path:
        raise InvalidSetting(f"{target}: does not name a function", hint=f"expected {_TARGET}")
    found: Any = _imported(module_name)
    for name in path.split("."):
        if not hasattr(found, name):
            known = [each for each in dir(found) if not each.startswith("_")]
            raise InvalidSetting(f"{target}: {module_name} has no {name!r}", hint=nearest(name, known))
        found = getattr(found, name)
    return found


def _imported(name: str) -> ModuleType:
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{name}.".startswith(f"{error.name}."):
            raise InvalidSetting(
                f"{name}: there is no module {error.name!r}",
                hint="modules are looked for in this directory, in PYTHONPATH, and among those that are installed",
            ) from None
        raise _import_failed(name, error) from error
    except (Exception, SystemExit) as error:
        raise _import_failed(name, error) from error


def _import_failed(name: str, error: BaseException) -> KlammError:
    """Say what went wrong, and in which line of the module, or of what it imports."""
    import traceback

    if os.environ.get("KLAMM_TRACEBACK"):
        raise error
    file, line = getattr(error, "filename", None), getattr(error, "lineno", None)
    if not isinstance(error, SyntaxError):
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "importlib" not in frame.filename]
        file, line = (frames[-1].filename, frames[-1].lineno) if frames else (None, None)
    return KlammError(
        f"{name}: cannot be imported: {type(error).__name__}: {error}" + ("" if file is None else f", {file}:{line}"),
        hint="KLAMM_TRACEBACK=1 shows more",
    )


def _error_type(name: str, option: str) -> type[Exception]:
    import builtins

    found = _load(name) if ":" in name else getattr(builtins, name, None)
    if not (isinstance(found, type) and issubclass(found, Exception)):
        raise InvalidSetting(f"{option} {name}: not a type of exceptions", hint="expected TimeoutError, or app:Busy")
    return found
