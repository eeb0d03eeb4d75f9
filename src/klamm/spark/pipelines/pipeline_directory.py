"""A folder that belongs to a pipeline: what it writes there, and how far it has come.

    _klamm/pipeline.json    whose it is: pipeline, store, topics, and the options that may not change between two runs
    _klamm/checkpoint/      Spark's
    _klamm/run.json         when the last run began and ended, and with which error
    _klamm/lock             held by the run that is at work

The first run takes a new folder for its pipeline. Every other run has to be the same pipeline on the same topics with
the same options: else two of them would write into each other's output, or one would go on where another stood. Spark
and others read the files beside `_klamm`: they pass over names that begin with `_`.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any

from klamm.disk import files
from klamm.disk.locks import LockFile
from klamm.errors import InvalidSetting, KlammError, NewerFormat, NotAStore, StoreBusy

__all__ = ["OURS", "PipelineDirectory", "Run", "local"]

OURS = "_klamm"
_VERSION = 1
_LONGEST_ERROR = 1000


class PipelineDirectory:
    """A folder that belongs to a pipeline."""

    def __init__(self, directory: str, options: Mapping[str, Any]) -> None:
        self.directory = directory
        self.options = dict(options)
        """Those of the first run."""

    @property
    def checkpoint(self) -> str:
        return f"{self.directory}/{OURS}/checkpoint"

    def inside(self, name: str) -> str:
        """Return a path beside the checkpoint, for what the pipeline itself has to remember."""
        return f"{self.directory}/{OURS}/{name}"

    @contextmanager
    def alone(self, *, recorded: bool = True) -> Iterator[None]:
        """Hold the folder alone, to read or change it. Raise StoreBusy if another run is at work.

        With `recorded`, this is a run of the pipeline, and run.json says how it ends.
        """
        lock = LockFile(self.inside("lock"))
        try:
            if not lock.try_hold(0):
                raise StoreBusy(f"{self.directory}: another run is at work", hint="wait until it has ended")
            if not recorded:
                yield
                return
            run = Run(_now_ms())
            run.write(self)
            try:
                yield
            except BaseException as error:
                replace(run, ended_ms=_now_ms(), error=_summary(error)).write(self)
                raise
            replace(run, ended_ms=_now_ms()).write(self)
        finally:
            lock.close()

    def rewrite(self, **states: bool) -> None:
        """Set or clear `resetting` or `retired`, durably: no run accepts a folder that is either."""
        path = self.inside("pipeline.json")
        known = {**json.loads(files.read(path)), **states}
        files.replace(path, json.dumps(known, indent=2).encode() + b"\n")

    @staticmethod
    def take(
        directory: str | os.PathLike[str], identity: Mapping[str, Any], options: Mapping[str, Any]
    ) -> PipelineDirectory:
        """Take a new or empty folder for a pipeline, or return to its own.

        `identity` (pipeline, store, topics with their ids) and `options` have to be what they were; an option that is
        None may be left to what it was. InvalidSetting says what differs.
        """
        path = local(directory)
        known = PipelineDirectory.read(path)
        if known is None:
            strangers = sorted(os.listdir(path)) if os.path.isdir(path) else []
            if strangers and strangers != [OURS]:
                raise InvalidSetting(
                    f"{path}: is not empty, and no pipeline's: it has {strangers[0]}", hint="use a new folder"
                )
            _make(f"{path}/{OURS}")
            content = {"version": _VERSION, "identity": dict(identity), "options": dict(options)}
            files.replace(f"{path}/{OURS}/pipeline.json", json.dumps(content, indent=2).encode() + b"\n")
            files.sync_directory(f"{path}/{OURS}")
            return PipelineDirectory(path, options)
        if known["resetting"]:
            raise InvalidSetting(f"{path}: a reset of it did not end", hint="run klamm pipeline reset again")
        if known["retired"]:
            raise InvalidSetting(f"{path}: this pipeline was retired", hint="use a new folder")
        theirs = known["identity"]
        for name, value in identity.items():
            if name == "topics" and theirs.get(name) != value and list(theirs.get(name) or ()) == list(value):
                raise InvalidSetting(
                    f"{path}: is of a topic {', '.join(value)} that is gone: it was deleted and re-created",
                    hint="use a new folder",
                )
            if theirs.get(name) != value:
                raise InvalidSetting(
                    f"{path}: belongs to {_described(theirs)}: its {name} is {_short(theirs.get(name))}, "
                    f"not {_short(value)}",
                    hint="give each pipeline a folder of its own",
                )
        for name, value in options.items():
            if value is not None and known["options"].get(name) != value:
                raise InvalidSetting(
                    f"{path}: was begun with {name} = {_short(known['options'].get(name))}, not {_short(value)}",
                    hint="that cannot change between two runs; use a new folder",
                )
        return PipelineDirectory(path, known["options"])

    @staticmethod
    def read(directory: str) -> dict[str, Any] | None:
        """Return the pipeline it belongs to; None if there is none."""
        path = f"{directory}/{OURS}/pipeline.json"
        try:
            found = json.loads(files.read(path))
            if found["version"] > _VERSION:
                raise NewerFormat(
                    f"{path}: has format {found['version']}, this Klamm knows formats up to {_VERSION}",
                    hint="use a newer Klamm",
                )
            states = {name: bool(found.get(name)) for name in ("resetting", "retired")}
            return {"identity": dict(found["identity"]), "options": dict(found["options"]), **states}
        except FileNotFoundError:
            return None
        except NotADirectoryError:
            raise InvalidSetting(f"{directory}: is a file; expected a folder") from None
        except (ValueError, KeyError, TypeError) as error:
            raise NotAStore(
                f"{path}: cannot be read: {error}", hint="it may have been edited by hand; remove the folder"
            ) from None


@dataclass(frozen=True)
class Run:
    """The last run of a pipeline."""

    started_ms: int
    ended_ms: int | None = None
    """None: it is at work, or was killed."""
    error: str | None = None

    @staticmethod
    def read(folder: PipelineDirectory) -> Run | None:
        """Return it; None if there was none, or if it cannot be read."""
        try:
            return Run(**json.loads(files.read(folder.inside("run.json"))))
        except (OSError, ValueError, TypeError):
            return None

    def write(self, folder: PipelineDirectory) -> None:
        files.replace(folder.inside("run.json"), json.dumps(asdict(self)).encode() + b"\n")


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _summary(error: BaseException) -> str:
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    text = str(error).strip().partition("\n")[0][:_LONGEST_ERROR]
    return text if isinstance(error, KlammError) else f"{type(error).__name__}: {text}"


def local(path: str | os.PathLike[str]) -> str:
    """Return a folder that this machine sees, absolute."""
    text = os.fspath(path)
    if "://" in text and not text.startswith("file://"):
        raise InvalidSetting(
            f"{text.partition('?')[0]}: is not a folder of this machine",
            hint="give a folder that this machine and all workers see",
        )
    return os.path.abspath(text.removeprefix("file://"))


def _make(path: str) -> None:
    try:
        os.makedirs(path, exist_ok=True)
    except OSError as error:
        raise InvalidSetting(f"{path}: cannot be made: {error.strerror}") from error
    files.sync_ancestors(path)


def _described(identity: Mapping[str, Any]) -> str:
    topics = ", ".join(identity.get("topics") or {})
    return f"the pipeline {identity.get('pipeline')}" + (f" of {topics}" if topics else "")


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 100 else text[:100] + "…"
