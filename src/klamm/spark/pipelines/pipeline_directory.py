"""A folder that belongs to a pipeline: what it writes there, and how far it has come.

    _klamm/pipeline.json    whose it is: pipeline, store, topics, and the options that may not change between two runs
    _klamm/checkpoint/      Spark's
    _klamm/run.json         when the last run began and ended, and with which error
    _klamm/lock             held by the run that is at work

In an object store (object_files.py) there is no lock: the journal decides which of two runs was first. Spark's
checkpoint is then in a temporary folder of this machine, made at the start of a run from the plans of the last two
micro-batches, which are in the store:

    _klamm/plans.json       {"3": "<what offsets/3 says of the source>", "4": …}

  PLD1  The plan of a micro-batch is in the store before anything of it is: its dead letters, its files. A later run
        carries out the same plan. Of two runs that plan, one is first, and the other ends with StoreBusy.

The first run takes a new folder for its pipeline. Every other run has to be the same pipeline on the same topics with
the same options: else two of them would write into each other's output, or one would go on where another stood. Spark
and others read the files beside `_klamm`: they pass over names that begin with `_`.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from typing import Any

from klamm.disk.locks import LockFile
from klamm.errors import InvalidSetting, KlammError, NewerFormat, NotAStore, StoreBusy, StoreError
from klamm.spark import checkpoint
from klamm.spark.pipelines.folder_files import OURS, FolderFiles, LocalFiles, files_of, local, overtaken

__all__ = ["OURS", "PipelineDirectory", "Run", "local"]

_VERSION = 1
_LONGEST_ERROR = 1000
_PIPELINE, _RUN, _PLANS = f"{OURS}/pipeline.json", f"{OURS}/run.json", f"{OURS}/plans.json"


class PipelineDirectory:
    """A folder that belongs to a pipeline."""

    def __init__(self, directory: str | FolderFiles, options: Mapping[str, Any]) -> None:
        self.files = files_of(directory) if isinstance(directory, str) else directory
        self.directory = self.files.root
        self.options = dict(options)
        """Those of the first run."""
        self._scratch: str | None = None

    @property
    def checkpoint(self) -> str:
        if self.files.is_local:
            return self.inside("checkpoint")
        assert self._scratch is not None  # `alone` makes it
        return self._scratch

    def inside(self, name: str) -> str:
        """Return a path beside the checkpoint, for what the pipeline itself has to remember."""
        return self.files.path(f"{OURS}/{name}")

    @contextmanager
    def alone(self, *, recorded: bool = True) -> Iterator[None]:
        """Hold the folder alone, to read or change it. Raise StoreBusy if another run is at work.

        With `recorded`, this is a run of the pipeline, and run.json says how it ends.
        """
        with self._held():
            if not recorded:
                yield
                return
            run = Run(_now_ms())
            run.write(self)
            try:
                yield
            except BaseException as error:
                with suppress(StoreError):  # the error that counts is the first
                    replace(run, ended_ms=_now_ms(), error=_summary(error)).write(self)
                raise
            replace(run, ended_ms=_now_ms()).write(self)

    @contextmanager
    def _held(self) -> Iterator[None]:
        if not self.files.is_local:
            with tempfile.TemporaryDirectory(prefix="klamm-") as scratch:
                self._scratch = scratch
                try:
                    yield
                finally:
                    self._scratch = None
            return
        lock = LockFile(self.inside("lock"))
        try:
            if not lock.try_hold(0):
                raise StoreBusy(f"{self.directory}: another run is at work", hint="wait until it has ended")
            yield
        finally:
            lock.close()

    def rewrite(self, **states: bool) -> None:
        """Set or clear `resetting` or `retired`, durably: no run accepts a folder that is either."""
        known = {**json.loads(self.files.read(_PIPELINE)), **states}
        self.files.replace(_PIPELINE, json.dumps(known, indent=2).encode() + b"\n")

    # ---- plans

    def restore_checkpoint(self, query: str, done: int) -> None:
        """Make the checkpoint of a folder in an object store: `done` is the last micro-batch that the journal has."""
        if self.files.is_local:
            return
        checkpoint.write_id(self.checkpoint, query)
        for number, line in sorted(self._plans().items()):
            if number <= done + 1:
                checkpoint.write_line(self.checkpoint, number, line)
        if done >= 0:
            checkpoint.write_commit(self.checkpoint, done)

    def save_plan(self, number: int) -> None:
        """Have the plan of a micro-batch on disk, or in the object store, before anything of it is committed."""
        checkpoint.sync_plan(self.checkpoint, number)
        if self.files.is_local:
            return
        before, line = self._plans(), checkpoint.line_of(self.checkpoint, number)
        if max(before, default=-1) > number or before.get(number, line) != line:
            raise overtaken(self.directory)
        if number not in before:
            plans = {str(number - 1): before[number - 1]} if number - 1 in before else {}
            self.files.replace(_PLANS, json.dumps({**plans, str(number): line}, indent=1).encode() + b"\n")

    def _plans(self) -> dict[int, str]:
        try:
            content = json.loads(self.files.read(_PLANS))
            return {int(number): str(line) for number, line in content.items()}
        except FileNotFoundError:
            return {}
        except (ValueError, AttributeError) as error:
            raise NotAStore(
                f"{self.files.path(_PLANS)}: cannot be read: {error}", hint="put _klamm/ back as it was"
            ) from None

    @staticmethod
    def take(
        directory: str | os.PathLike[str] | FolderFiles, identity: Mapping[str, Any], options: Mapping[str, Any]
    ) -> PipelineDirectory:
        """Take a new or empty folder for a pipeline, or return to its own.

        `identity` (pipeline, store, topics with their ids) and `options` have to be what they were; an option that is
        None may be left to what it was. InvalidSetting says what differs.
        """
        files = directory if isinstance(directory, FolderFiles) else LocalFiles(local(directory))
        path = files.root
        known = PipelineDirectory.read(files)
        if known is None:
            strangers = files.names()
            if strangers and strangers != [OURS]:
                raise InvalidSetting(
                    f"{path}: is not empty, and no pipeline's: it has {strangers[0]}", hint="use a new folder"
                )
            files.make()
            content = {"version": _VERSION, "identity": dict(identity), "options": dict(options)}
            files.replace(_PIPELINE, json.dumps(content, indent=2).encode() + b"\n")
            return PipelineDirectory(files, options)
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
        return PipelineDirectory(files, known["options"])

    @staticmethod
    def read(directory: str | FolderFiles) -> dict[str, Any] | None:
        """Return the pipeline it belongs to; None if there is none."""
        files = files_of(directory) if isinstance(directory, str) else directory
        path = files.path(_PIPELINE)
        try:
            found = json.loads(files.read(_PIPELINE))
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
            raise InvalidSetting(f"{files.root}: is a file; expected a folder") from None
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
            return Run(**json.loads(folder.files.read(_RUN)))
        except (OSError, ValueError, TypeError):
            return None

    def write(self, folder: PipelineDirectory) -> None:
        folder.files.record(_RUN, json.dumps(asdict(self)).encode() + b"\n")


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _summary(error: BaseException) -> str:
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    text = str(error).strip().partition("\n")[0][:_LONGEST_ERROR]
    return text if isinstance(error, KlammError) else f"{type(error).__name__}: {text}"


def _described(identity: Mapping[str, Any]) -> str:
    topics = ", ".join(identity.get("topics") or {})
    return f"the pipeline {identity.get('pipeline')}" + (f" of {topics}" if topics else "")


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 100 else text[:100] + "…"
