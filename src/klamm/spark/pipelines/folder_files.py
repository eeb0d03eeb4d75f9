"""The files of a pipeline's folder: on this machine's file systems, or in an object store (object_files.py).

A name is that of a file from the folder on, `_klamm/journal.json`; a path is the folder, a slash and a name.

Promises
  FIL1  `replace` leaves the old file or the new one, complete, and on disk when it returns.
  FIL2  A staged file that is published has its bytes, and in the end one name. To publish it again does nothing.
"""

from __future__ import annotations

import os
import shutil
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any, NamedTuple

from klamm.disk import _os, files
from klamm.errors import InvalidSetting, StoreBusy

__all__ = [
    "OURS",
    "STAGING",
    "FileStatus",
    "FolderFiles",
    "LocalFiles",
    "LocalOutput",
    "Output",
    "days_of",
    "files_in",
    "files_of",
    "is_data",
    "is_object",
    "local",
    "overtaken",
]

OURS = "_klamm"
STAGING = f"{OURS}/staging"
_OBJECTS = ("s3://", "s3a://")


class FileStatus(NamedTuple):
    """The size of a file, and when it was written, since 1970."""

    size: int
    modified_ms: int


class Output(ABC):
    """A place for new files that a task writes; it can be sent to other processes."""

    @abstractmethod
    def folder(self) -> AbstractContextManager[str]:
        """Return a folder of this machine to write files in."""

    @abstractmethod
    def keep(self, folder: str, path: str) -> str:
        """Put a file of `folder`, which is complete, where the journal takes it from. Return its path there."""


class FolderFiles(ABC):
    """The files of one folder; one run at a time, or, in an object store, until another run is first."""

    is_local = True

    def __init__(self, root: str) -> None:
        self.root = root
        self.run: str | None = None
        """The id of this run, if its changes have to differ from those of others."""
        self.options: dict[str, str] = {}
        """Storage options of an object store."""

    def without_options(self, text: str) -> str:
        """Return the text of an error without the values of storage options."""
        for value in sorted(filter(None, self.options.values()), key=len, reverse=True):
            text = text.replace(value, "***")
        return text

    def path(self, name: str) -> str:
        """Return the path of a name."""
        return f"{self.root}/{name}"

    @abstractmethod
    def name(self, path: str) -> str:
        """Return the name of a path."""

    @abstractmethod
    def read(self, name: str) -> bytes:
        """Return the content of a file. Raise FileNotFoundError if there is none."""

    @abstractmethod
    def replace(self, name: str, data: bytes) -> None:
        """Replace a file that was read before. In an object store raise StoreBusy if another run has replaced it."""

    @abstractmethod
    def record(self, name: str, data: bytes) -> None:
        """Replace a file, whatever it is: of several runs the last one wins."""

    @abstractmethod
    def status(self, name: str) -> FileStatus:
        """Return the size of a file, and when it was written."""

    @abstractmethod
    def names(self) -> list[str]:
        """Return the names of files and folders in the folder itself."""

    @abstractmethod
    def make(self) -> None:
        """Make the folder, durably, for a pipeline."""

    @abstractmethod
    def stage(self, name: str, sequence: int) -> str:
        """Return the path of a new folder for files of a change of the journal."""

    @abstractmethod
    def output(self, path: str) -> Output:
        """Return the output of tasks that write to a staged folder."""

    @abstractmethod
    def secure(self, names: Sequence[str]) -> None:
        """Have staged files on disk, names and bytes."""

    @abstractmethod
    def publish(self, adds: Sequence[tuple[str, str]], removes: Sequence[str], *, is_first: bool) -> None:
        """Give staged files their names, and remove files, durably. `is_first`: no other run began it."""

    @abstractmethod
    def check_first(self, name: str) -> None:
        """Raise StoreBusy if another run has replaced a file since this run did."""

    @abstractmethod
    def clear(self, sequence: int) -> None:
        """Remove what is staged for changes up to `sequence`, which is carried out."""

    @abstractmethod
    def give_up(self, sequence: int) -> None:
        """Remove what this run has staged for a change that was not decided."""

    @abstractmethod
    def days(self) -> list[str]:
        """Return the names of the folders of days, in order."""

    @abstractmethod
    def sizes(self, day: str) -> dict[str, int]:
        """Return the sizes of Parquet files of a day, by path, in order; of those that may be merged."""

    @abstractmethod
    def paths(self, day: str) -> list[str]:
        """Return the Parquet files of a day, in order."""

    @abstractmethod
    def source(self, path: str) -> Any:
        """Return a Parquet file as pyarrow opens it, to read its footer."""

    @abstractmethod
    def content(self, path: str) -> Any:
        """Return a Parquet file as pyarrow opens it, to read all of it."""


class LocalOutput(Output):
    """A folder that every process sees."""

    def __init__(self, path: str) -> None:
        self._path = path

    @contextmanager
    def folder(self) -> Iterator[str]:
        os.makedirs(self._path, exist_ok=True)
        yield self._path

    def keep(self, folder: str, path: str) -> str:
        return path


class LocalFiles(FolderFiles):
    """A folder of this machine's file systems."""

    def name(self, path: str) -> str:
        return os.path.relpath(path, self.root)

    def read(self, name: str) -> bytes:
        return files.read(self.path(name))

    def replace(self, name: str, data: bytes) -> None:
        files.replace(self.path(name), data)

    def record(self, name: str, data: bytes) -> None:
        files.replace(self.path(name), data)

    def status(self, name: str) -> FileStatus:
        status = os.stat(self.path(name))
        return FileStatus(status.st_size, status.st_mtime_ns // 1_000_000)

    def names(self) -> list[str]:
        return sorted(os.listdir(self.root)) if os.path.isdir(self.root) else []

    def make(self) -> None:
        path = self.path(OURS)
        try:
            os.makedirs(path, exist_ok=True)
        except OSError as error:
            raise InvalidSetting(f"{path}: cannot be made: {error.strerror}") from error
        files.sync_ancestors(path)

    def stage(self, name: str, sequence: int) -> str:
        path = self.path(f"{STAGING}/{name}")
        shutil.rmtree(path, ignore_errors=True)
        return path

    def output(self, path: str) -> Output:
        return LocalOutput(path)

    def secure(self, names: Sequence[str]) -> None:
        for name in names:
            files.sync_file(self.path(name))
        for above in {os.path.dirname(name) for name in names}:
            while above:
                files.sync_directory(self.path(above))
                above = os.path.dirname(above)

    def publish(self, adds: Sequence[tuple[str, str]], removes: Sequence[str], *, is_first: bool) -> None:
        folders = {os.path.dirname(name) for name in (*(name for _, name in adds), *removes)}
        for folder in folders:
            files.make_directory(self.path(folder))
        files.sync_directory(self.root)  # a new sub-folder is on disk before a file is moved into it
        for staged, name in adds:
            with suppress(FileNotFoundError):  # it was renamed already
                _os.rename(self.path(staged), self.path(name))
        for name in removes:
            files.remove(self.path(name))
        for folder in folders:
            files.sync_directory(self.path(folder))

    def check_first(self, name: str) -> None:
        """Do nothing: a lock keeps other runs out."""

    def clear(self, sequence: int) -> None:
        shutil.rmtree(self.path(STAGING), ignore_errors=True)

    def give_up(self, sequence: int) -> None:
        """Do nothing: the next run removes it."""

    def days(self) -> list[str]:
        return days_of(self.root)

    def sizes(self, day: str) -> dict[str, int]:
        return {path: os.path.getsize(path) for path in self.paths(day)}

    def paths(self, day: str) -> list[str]:
        return files_in(self.path(day))

    def source(self, path: str) -> Any:
        return path

    def content(self, path: str) -> Any:
        return path


def files_of(location: str | os.PathLike[str], storage_options: Mapping[str, str] | None = None) -> FolderFiles:
    """Return the files of a folder: of this machine, or at an address such as s3://bucket/lake/orders."""
    text = os.fspath(location)
    if is_object(text):
        from klamm.spark.pipelines.object_files import ObjectFiles

        return ObjectFiles(text, storage_options or {})
    path = local(text)
    if storage_options:
        raise InvalidSetting("storage_options: only a folder in an object store has them", hint="leave them out")
    return LocalFiles(path)


def is_object(location: str) -> bool:
    """Return whether a folder is in an object store."""
    return location.startswith(_OBJECTS)


def local(path: str | os.PathLike[str]) -> str:
    """Return a folder that this machine sees, absolute."""
    text = os.fspath(path)
    if "://" in text and not text.startswith("file://"):
        raise InvalidSetting(
            f"{text.partition('?')[0]}: is not a folder of this machine",
            hint="give a folder that this machine and all workers see",
        )
    return os.path.abspath(text.removeprefix("file://"))


def files_in(path: str) -> list[str]:
    """Return the Parquet files of a folder, in order."""
    try:
        return sorted(f"{path}/{name}" for name in os.listdir(path) if is_data(name))
    except FileNotFoundError:
        return []


def is_data(name: str) -> bool:
    """Return whether a file's own name is that of data, for readers of Parquet."""
    return name.endswith(".parquet") and name[0] not in "._"


def days_of(path: str, prefix: str = "date=") -> list[str]:
    """Return the names of the folders of days, in order."""
    return sorted(name for name in os.listdir(path) if name.startswith(prefix)) if os.path.isdir(path) else []


def overtaken(root: str) -> StoreBusy:
    """Return the error of a run that was not the first to change a folder in an object store."""
    return StoreBusy(
        f"{root}: another run is at work, and was first", hint="nothing was changed; run it again when that has ended"
    )
