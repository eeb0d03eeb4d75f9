"""A folder that belongs to a pipeline: what it writes there, and how far it has come.

    _klamm/pipeline.json    whose it is: pipeline, store, topics, and the options that may not change between two runs
    _klamm/checkpoint/      Spark's
    _klamm/lock             held by the run that is at work

A folder is claimed by the first run, and every other run has to be the same pipeline on the same topics with the same
options: else two of them would write into each other's output, or one would go on where another stood. What Spark and
others read there are the files beside `_klamm`: they pass over names that begin with `_`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from klamm.disk import files
from klamm.disk.locks import LockFile
from klamm.errors import InvalidSetting, NotAStore, StoreBusy

__all__ = ["OURS", "Claim"]

OURS = "_klamm"
_VERSION = 1


class Claim:
    """One folder, claimed."""

    def __init__(self, directory: str, options: Mapping[str, Any]) -> None:
        self.directory = directory
        self.options = dict(options)
        """What was said when it was claimed first."""

    @property
    def checkpoint(self) -> str:
        return f"{self.directory}/{OURS}/checkpoint"

    def inside(self, name: str) -> str:
        """A path beside the checkpoint, for what the pipeline itself has to remember."""
        return f"{self.directory}/{OURS}/{name}"

    @contextmanager
    def alone(self) -> Iterator[None]:
        """As the only one who reads or changes the folder; StoreBusy if another run is at work."""
        lock = LockFile(self.inside("lock"))
        try:
            if not lock.try_hold(0):
                raise StoreBusy(f"{self.directory}: another run is at work", hint="wait until it has ended")
            yield
        finally:
            lock.close()

    @staticmethod
    def take(directory: str | os.PathLike[str], identity: Mapping[str, Any], options: Mapping[str, Any]) -> Claim:
        """Claim a new or empty folder, or come back to one.

        `identity` (pipeline, store, topics with their ids) and `options` have to be what they were; an option that is
        None may be left to what it was. InvalidSetting says what differs.
        """
        path = local(directory)
        known = Claim.read(path)
        if known is None:
            strangers = sorted(os.listdir(path)) if os.path.isdir(path) else []
            if strangers and strangers != [OURS]:
                raise InvalidSetting(
                    f"{path}: is not empty, and no pipeline's: it has {strangers[0]}", hint="use a new folder"
                )
            _make(f"{path}/{OURS}")
            told = {"version": _VERSION, "identity": dict(identity), "options": dict(options)}
            files.replace(f"{path}/{OURS}/pipeline.json", json.dumps(told, indent=2).encode() + b"\n")
            files.sync_directory(f"{path}/{OURS}")
            return Claim(path, options)
        theirs = known["identity"]
        for name, value in identity.items():
            if name == "topics" and theirs.get(name) != value and list(theirs.get(name) or ()) == list(value):
                raise InvalidSetting(
                    f"{path}: is of a topic {', '.join(value)} that is gone: it was deleted and made anew",
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
        return Claim(path, known["options"])

    @staticmethod
    def read(directory: str) -> dict[str, Any] | None:
        """Whose it is; None if it is nobody's."""
        path = f"{directory}/{OURS}/pipeline.json"
        try:
            found = json.loads(files.read(path))
            if found["version"] > _VERSION:
                raise InvalidSetting(f"{path}: was written by a newer Klamm", hint="upgrade Klamm")
            return {"identity": dict(found["identity"]), "options": dict(found["options"])}
        except FileNotFoundError:
            return None
        except NotADirectoryError:
            raise InvalidSetting(f"{directory}: is a file; want a folder") from None
        except (ValueError, KeyError, TypeError) as error:
            raise NotAStore(f"{path}: cannot be read: {error}", hint="was it edited? remove the folder") from None


def local(path: str | os.PathLike[str]) -> str:
    """A folder that this machine sees, absolute."""
    text = os.fspath(path)
    if "://" in text and not text.startswith("file://"):
        raise InvalidSetting(
            f"{text}: is not a folder of this machine", hint="mount it, or give a folder that all workers see"
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
