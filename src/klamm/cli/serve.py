"""`klamm serve`: the Kafka door of a store, until a signal comes.

    stdout   one line, once clients can come: klamm: serving events/ at 127.0.0.1:9092 (store 6f0c…); or (new store …)
    stderr   the log, one line an event; if it cannot start, one line that says why
    signals  SIGTERM, SIGINT: accept no new connections, finish what is under way, exit 0. A second one: exit at once.

Settings come from the table of klamm/kafka/settings.py. The command line wins over the TOML file, that over defaults.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, Self

import typer

from klamm.cli.pairs import split_pair
from klamm.cli.stores import check_directory, is_store, path_of
from klamm.errors import InvalidSetting
from klamm.kafka.settings import SERVER_SETTINGS, ServerSettings
from klamm.store.names import nearest

if TYPE_CHECKING:
    import asyncio
    from types import FrameType

__all__ = ["serve", "settings_from"]

_OWN = {"log-format": ("text", "json"), "log-level": ("info", "debug", "warning", "error")}  # the first is the default

_SWITCH_S = 0.001  # so long a thread keeps the interpreter when others want it (Python: 5 ms)
_GC_THRESHOLD = (50_000, 20, 100)  # new objects until the youngest are looked at, and so on (Python: 700, 10, 10)


def _option(name: str, metavar: str) -> Any:
    row = SERVER_SETTINGS[name]
    default = f" [default: {row.default}]" if row.default not in ("", -1) else ""
    return typer.Option(f"--{name}", metavar=metavar, help=row.doc + default, show_default=False)


# Texts, all of them: the table parses, whether they come from here or from a file.
def serve(
    path: Annotated[
        str | None,
        typer.Argument(metavar="[PATH]", help="The store; created if absent. [default: $KLAMM_STORE]"),
    ] = None,
    kafka: Annotated[str | None, _option("kafka", "PORT")] = None,
    host: Annotated[str | None, _option("host", "ADDRESS")] = None,
    advertise: Annotated[str | None, _option("advertise", "HOST:PORT")] = None,
    node_id: Annotated[str | None, _option("node-id", "N")] = None,
    default_partitions: Annotated[str | None, _option("default-partitions", "N")] = None,
    metrics: Annotated[str | None, _option("metrics", "PORT")] = None,
    console: Annotated[
        str | None,
        typer.Option(
            metavar="PORT", help="Show the store in a browser, too, at this port of 127.0.0.1; 0: any free one."
        ),
    ] = None,
    mask: Annotated[
        list[str] | None,
        typer.Option(metavar="FIELD", help="A field of JSON that the console does not show; may be repeated."),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(metavar="FILE", envvar="KLAMM_CONFIG", help="A TOML file with settings in a table [serve]."),
    ] = None,
    log_format: Annotated[
        str | None, typer.Option(metavar="FORMAT", help="How the log is written: text or json. [default: text]")
    ] = None,
    log_level: Annotated[
        str | None, typer.Option(metavar="LEVEL", help="debug, info, warning or error. [default: info]")
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="Setting of the server, by name; may be repeated."),
    ] = None,
) -> None:
    """Serve a store to Kafka clients, until SIGTERM or SIGINT."""
    sources: dict[str, SettingSource] = {}
    if config is not None:
        sources |= _from_file(config)
    sources |= _from_sets(settings or [])
    options = {
        "kafka": kafka,
        "host": host,
        "advertise": advertise,
        "node-id": node_id,
        "default-partitions": default_partitions,
        "metrics": metrics,
        "log-format": log_format,
        "log-level": log_level,
        "console": console,
        "mask": mask or None,
    }
    for name, value in options.items():
        if value is not None:
            sources[_key(name)] = SettingSource(name, value, f"--{name}")
    log_as, log_from = (_own(sources, name) for name in _OWN)
    port, fields = _console_port(sources), _mask(sources)
    chosen = _settings(sources)
    if fields and port is None:
        raise InvalidSetting("mask: there is no console that could hide fields", hint="add --console PORT")

    from klamm.kafka.logs import to_stderr

    to_stderr(log_as, log_from)
    _raise_open_files()
    _let_the_loop_run()
    _serve(_where(path), chosen, port, fields)


def settings_from(config: Path | None, sets: list[str]) -> ServerSettings:
    """Return the settings that a server has with this file and these --set."""
    sources = (_from_file(config) if config is not None else {}) | _from_sets(sets)
    for name in _OWN:
        _own(sources, name)
    return _settings(sources)


def _where(given: str | None) -> Path:
    """Return the path of the store. Raise if a store that is to be created is not named."""
    check_directory(given, "serve", "name the directory to serve; an address is served already")
    path = Path(path_of(given))
    if path == Path() and not is_store(path):
        raise InvalidSetting("serve: missing PATH", hint="the directory of a store; created if absent")
    return path


# ---- settings


class SettingSource(NamedTuple):
    """A setting, and where it was said: for the message when it does not fit."""

    name: str
    value: Any
    where: str


def _key(name: str) -> str:
    return name.replace(".", "_").replace("-", "_")


def _from_sets(pairs: list[str]) -> dict[str, SettingSource]:
    sources = {}
    for pair in pairs:
        name, value = split_pair(pair, f"--set {pair}", "expected --set name=value")
        sources[_key(name.strip())] = SettingSource(name.strip(), value.strip(), f"--set {pair}")
    return sources


def _from_file(path: Path) -> dict[str, SettingSource]:
    import tomllib

    try:
        with path.open("rb") as file:
            content = tomllib.load(file)
    except OSError as error:
        raise InvalidSetting(f"--config {path}: {error.strerror}") from None
    except ValueError as error:  # of TOML, or of UTF-8
        raise InvalidSetting(f"{path}: is not TOML: {error}") from None
    for name, value in content.items():
        if not isinstance(value, dict):
            raise InvalidSetting(f"{path}: {name}: is not in a table", hint="settings of a server go below [serve]")
        if name != "serve":
            raise InvalidSetting(f"{path}: [{name}]: there is no such table", hint=nearest(name, ["serve"]))
    return {_key(name): SettingSource(name, value, f"{path}") for name, value in _flat(content.get("serve", {}))}


def _flat(table: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """Yield names and values: TOML reads a name with dots as tables within tables."""
    for name, value in table.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{before}{name}.")
        else:
            yield f"{before}{name}", value


def _own(sources: dict[str, SettingSource], name: str) -> str:
    """Take out a setting of this command alone, and return it."""
    choices = _OWN[name]
    found = sources.pop(_key(name), None)
    if found is None:
        return choices[0]
    if found.value not in choices:
        hint = f"expected {' or '.join(choices)}"
        raise InvalidSetting(f"{found.where}: {name}: {found.value!r} is invalid", hint=hint)
    return str(found.value)


def _console_port(sources: dict[str, SettingSource]) -> int | None:
    """Take out where the console listens, and return it; None: there is none."""
    source = sources.pop("console", None)
    if source is None:
        return None
    text = str(source.value)
    if not (text.isascii() and text.isdigit() and int(text) <= 65535):
        hint = "expected a port: 0 to 65535"
        raise InvalidSetting(f"{source.value!r} is invalid", setting="console", where=source.where, hint=hint)
    return int(text)


def _mask(sources: dict[str, SettingSource]) -> list[str]:
    """Take out the fields that the console does not show, and return them."""
    source = sources.pop("mask", None)
    if source is None:
        return []
    return [str(field) for field in source.value] if isinstance(source.value, list) else [str(source.value)]


def _settings(sources: Mapping[str, SettingSource]) -> ServerSettings:
    try:
        return ServerSettings.of({each.name: each.value for each in sources.values()})
    except InvalidSetting as error:
        culprit = sources.get(_key(error.setting or ""))
        if culprit is None:
            raise
        hint = error.hint
        if _key(culprit.name) not in map(_key, SERVER_SETTINGS):
            hint = (
                error.hint
                or nearest(culprit.name, [*_OWN, "console", "mask"])
                or "docs/reference/server-settings.md has all"
            )
        setting = None if culprit.where == f"--{culprit.name}" else error.setting  # which the option says already
        raise InvalidSetting(error.problem, setting=setting, where=culprit.where, hint=hint) from None


# ---- running


def _raise_open_files() -> None:
    """Raise the limit of open files: a connection is one, and shells allow few."""
    try:
        import resource
    except ImportError:  # Windows
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (ValueError, OSError):  # macOS has a limit beside the limit
            pass


def _let_the_loop_run() -> None:
    """Shorten the time for which other threads, and the garbage collector, which stops all of them while it looks at
    every object, hold up the loop. Requests and records have no cycles.
    """
    sys.setswitchinterval(_SWITCH_S)
    gc.set_threshold(*_GC_THRESHOLD)
    gc.collect()
    gc.freeze()


class _Signals:
    """The first asks us to stop. The second means it. Taken by Python, not by the loop, which may be what hangs."""

    def __init__(self) -> None:
        self._signal = ""
        self._loop: asyncio.AbstractEventLoop | None = None

    def __enter__(self) -> Self:
        import signal

        self._before = {number: signal.signal(number, self._on_signal) for number in (signal.SIGTERM, signal.SIGINT)}
        return self

    def __exit__(self, *_: object) -> None:
        import signal

        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _on_signal(self, number: int, _: FrameType | None) -> None:
        import signal

        if self._signal:
            os._exit(128 + number)
        self._signal = signal.Signals(number).name
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._came.set)

    async def wait(self) -> str:
        """Wait for a signal and return its name; it may have come before the call."""
        import asyncio

        self._came = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        if not self._signal:
            await self._came.wait()
        return self._signal


def _serve(path: Path, settings: ServerSettings, port: int | None, mask: list[str]) -> None:
    import asyncio

    from klamm.cli.console_process import ConsoleProcess
    from klamm.cli.history_thread import HistoryThread
    from klamm.cli.notify import notify
    from klamm.kafka.logs import event
    from klamm.kafka.security.endpoints import is_guarded
    from klamm.kafka.service import Service

    new = not is_store(path)  # which may be a slip of the fingers, and is told

    async def run(signals: _Signals) -> None:
        console = None if port is None else ConsoleProcess(path, port, mask, is_guarded=is_guarded(settings))
        if console is not None:
            console.check()
        service, history = Service(path, settings), HistoryThread(path)
        await service.start()
        try:
            if console is not None:
                await console.start(service.metrics_url, service.monitor_token)
            history.start()
            _tune_collector()
            beside = f"{'new ' if new else ''}store {service.store_id}"
            _say(path, service.listeners, beside, service.metrics, console.url if console is not None else "")
            notify("READY=1", f"STATUS=serving {path} at {service.listeners}")
            event("stopping", signal=await service.serve_until(signals.wait()))
        finally:
            notify("STOPPING=1")
            await asyncio.to_thread(history.stop)
            if console is not None:
                await console.stop()
            await service.stop()

    with _Signals() as signals:
        asyncio.run(run(signals))
        _leave_stuck_threads()


def _tune_collector() -> None:
    """Exempt what is here now from collection, and collect less often: waiting clients are objects, not garbage."""
    import gc

    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)


def _leave_stuck_threads() -> None:
    """Leave threads that wait for a lock of a stopped process. No response that was sent depends on them."""
    import threading
    import time

    from klamm.kafka.logs import event

    until = time.monotonic() + 1.0
    for thread in threading.enumerate():
        if thread is not threading.main_thread() and not thread.daemon:
            thread.join(max(0.0, until - time.monotonic()))
            if thread.is_alive():
                event("leaving", thread=thread.name, why="it waits for a lock, or for the disk")
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(0)


def _say(path: Path, address: str, store: str, metrics: str, console: str) -> None:
    beside = store + (f", metrics at {metrics}" if metrics else "") + (f", console at {console}" if console else "")
    shown = f"{path}{os.sep}" if not str(path).endswith(os.sep) else str(path)
    try:
        sys.stdout.write(f"klamm: serving {shown} at {address} ({beside})\n")
        sys.stdout.flush()
    except OSError:  # its reader is gone
        pass
