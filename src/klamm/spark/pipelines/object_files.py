"""The files of a pipeline's folder as objects of S3, or of a store with its protocol, by the package obstore.

    s3://bucket/lake/orders/_klamm/journal.json
    s3://bucket/lake/orders/_klamm/staging/<sequence>-<run>/…    of one run, for that change of the journal

There are neither renames nor locks. What a run decides is one PUT with a condition: If-Match, with the ETag of the
object that it has read, or If-None-Match, if there was none. Of two runs one is first, and the other one ends with
StoreBusy. A staged file gets its name by a copy, and is deleted when all of its change are copied.

The response to a PUT may be lost, so a PUT whose outcome is unknown, or that was refused, is compared with what is
there: a change has the id of its run, so a run knows its own. Lists are used for what can be done again: merges of
small files, and removal of what is staged.

Promises
  OBJ1  `replace` takes the place of the object that this run has read or written last, and of no other.
  OBJ2  No file is removed that is staged for a change which may still be decided: only those of changes up to one that
        is carried out, none of which can be decided again.
  OBJ3  A file that was published in the last SETTLED_S is not merged: a copy that another run has begun, and that the
        store completes late, never brings back a file that a merge has removed.
  OBJ4  Storage options are in no file and in no error.
"""

from __future__ import annotations

import os
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any

from klamm.errors import InvalidSetting, NotAStore, NotInstalled, StoreError, Unreachable
from klamm.spark.pipelines.folder_files import OURS, STAGING, FileStatus, FolderFiles, Output, is_data, overtaken

__all__ = ["SETTLED_S", "ObjectFiles"]

SETTLED_S = 900
_TRIES = 5
_TIMEOUT_S = 180
"""Of a request: long enough for a file of MAX_FILE_BYTES to come, or to be copied."""
_COPIES = 8
"""At a time."""
_FOOTER = 64 << 10
_LONGEST_ERROR = 300
_NO_CREDENTIALS = "169.254.169.254"  # a machine of Amazon's has its role's there; it is asked when none were given
_CLIENT = frozenset({"allow_http", "allow_invalid_certificates", "connect_timeout", "proxy_url", "timeout"})


class ObjectFiles(FolderFiles):
    """The files of a folder in an object store; for one run."""

    is_local = False

    def __init__(self, address: str, options: Mapping[str, str]) -> None:
        """Prepare. Raise NotInstalled without the package, and InvalidSetting for an invalid address or option."""
        try:
            import obstore
        except ImportError:
            raise NotInstalled.package("obstore", "'klamm[objects]'") from None
        bucket, _, prefix = address.partition("://")[2].partition("/")
        prefix = prefix.rstrip("/")
        parts = prefix.split("/")
        if not bucket or not all(parts) or {".", ".."} & set(parts):
            raise InvalidSetting(
                f"{address}: is invalid", hint="expected a bucket and a folder: s3://bucket/lake/orders"
            )
        super().__init__(f"s3://{bucket}/{prefix}")
        self.run = uuid.uuid4().hex
        self.options = dict(options)
        self._obstore: Any = obstore
        self._versions: dict[str, str | None] = {}  # ETags of what was read or written last; None: there was nothing
        config, client = _config(options)
        try:
            self._store: Any = obstore.store.S3Store(bucket, prefix=prefix, config=config, client_options=client)
        except obstore.exceptions.BaseError as error:
            raise InvalidSetting(
                f"{self.root}: storage_options: {self._text(error)}", hint="expected names such as aws_region"
            ) from None

    def name(self, path: str) -> str:
        return path.removeprefix(f"{self.root}/")

    # ---- small files

    def read(self, name: str) -> bytes:
        with self._errors(name):
            try:
                response = self._obstore.get(self._store, name)
            except FileNotFoundError:
                self._versions[name] = None
                raise
            data = bytes(response.bytes())
            self._versions[name] = response.meta["e_tag"]
            return data

    def replace(self, name: str, data: bytes) -> None:
        version = self._versions[name]
        mode: Any = "create" if version is None else {"e_tag": version}
        refusals = (self._obstore.exceptions.AlreadyExistsError, self._obstore.exceptions.PreconditionError)
        for attempt in range(1, _TRIES + 1):
            try:
                response = self._obstore.put(self._store, name, data, mode=mode, use_multipart=False)
                self._versions[name] = response["e_tag"]
                return
            except (*refusals, FileNotFoundError, self._obstore.exceptions.BaseError) as error:
                try:
                    is_ours = self.read(name) == data
                except FileNotFoundError:
                    is_ours = False
                if is_ours:  # it was carried out, and the response was lost
                    return
                if self._versions[name] != version:
                    raise overtaken(self.root) from None
                if attempt == _TRIES:
                    raise self._failure(name, error) from None
                time.sleep(0.1 * 2**attempt)

    def record(self, name: str, data: bytes) -> None:
        with self._errors(name):
            self._obstore.put(self._store, name, data, use_multipart=False)

    def status(self, name: str) -> FileStatus:
        found = self._head(name)
        return FileStatus(int(found["size"]), int(found["last_modified"].timestamp() * 1000))

    def _head(self, name: str) -> Any:
        with self._errors(name):
            return self._obstore.head(self._store, name)

    # ---- folders

    def names(self) -> list[str]:
        with self._errors(""):
            found = self._obstore.list_with_delimiter(self._store)
        return sorted({*found["common_prefixes"], *(each["path"] for each in found["objects"])})

    def make(self) -> None:
        """Do nothing: an object needs no folder."""

    def days(self) -> list[str]:
        return [name for name in self.names() if name.startswith("date=")]

    def paths(self, day: str) -> list[str]:
        return sorted(self.path(each["path"]) for each in self._listed(day) if is_data(os.path.basename(each["path"])))

    def sizes(self, day: str) -> dict[str, int]:
        newest_s = self._head(f"{OURS}/journal.json")["last_modified"].timestamp() - SETTLED_S  # the store's clock
        settled = {
            self.path(each["path"]): each["size"]
            for each in self._listed(day)
            if is_data(os.path.basename(each["path"])) and each["last_modified"].timestamp() <= newest_s
        }
        return dict(sorted(settled.items()))

    def _listed(self, folder: str) -> list[Any]:
        with self._errors(folder):
            return [each for chunk in self._obstore.list(self._store, prefix=f"{folder}/") for each in chunk]

    # ---- staged files

    def stage(self, name: str, sequence: int) -> str:
        return self.path(f"{STAGING}/{sequence:08d}-{self.run}/{name}")

    def output(self, path: str) -> Output:
        return _ObjectOutput(self.root, self.options, path)

    def upload(self, source: str, path: str) -> None:
        """Make a file of this machine an object."""
        with self._errors(self.name(path)), open(source, "rb") as file:
            self._obstore.put(self._store, self.name(path), file)

    def secure(self, names: Sequence[str]) -> None:
        """Do nothing: an object that was written is there."""

    def publish(self, adds: Sequence[tuple[str, str]], removes: Sequence[str], *, is_first: bool) -> None:
        with ThreadPoolExecutor(_COPIES) as pool:
            missing = [name for name in pool.map(self._copy, *zip(*adds, strict=True)) if name] if adds else []
        if missing and is_first:
            self.check_first(f"{OURS}/journal.json")
            raise NotAStore(
                f"{self.path(missing[0])}: the staged file is gone, though its change is decided",
                hint="let nothing but archive remove objects below _klamm/; archive to a new folder",
            )
        self._delete(removes)

    def _copy(self, staged: str, name: str) -> str | None:
        """Copy a staged file. Return its name if neither is there: both went, in later changes or by other hands."""
        with self._errors(name):
            try:
                self._obstore.copy(self._store, staged, name)
                return None
            except FileNotFoundError:
                pass  # it was copied already
            try:
                self._obstore.head(self._store, name)
                return None
            except FileNotFoundError:
                return name

    def check_first(self, name: str) -> None:
        version = self._versions[name]
        with suppress(FileNotFoundError):
            self.read(name)
        if self._versions[name] != version:
            raise overtaken(self.root)

    def clear(self, sequence: int) -> None:
        staged = [each["path"] for each in self._listed(STAGING)]
        self._delete([name for name in staged if _sequence_of(name) <= sequence])

    def give_up(self, sequence: int) -> None:
        self._delete([each["path"] for each in self._listed(f"{STAGING}/{sequence:08d}-{self.run}")])

    def _delete(self, names: Sequence[str]) -> None:
        if names:
            with self._errors(names[0]):
                self._obstore.delete(self._store, list(names))

    # ---- Parquet

    def source(self, path: str) -> Any:
        """Return a file that reads what pyarrow asks for: its footer, for most."""
        import pyarrow as pa

        with self._errors(self.name(path)):
            reader = self._obstore.open_reader(self._store, self.name(path), buffer_size=_FOOTER)
        file: Any = _Reader(reader)
        return pa.PythonFile(file, mode="r")

    def content(self, path: str) -> Any:
        """Return the whole of a file, as pyarrow opens it."""
        import pyarrow as pa

        with self._errors(self.name(path)):
            return pa.BufferReader(pa.py_buffer(self._obstore.get(self._store, self.name(path)).bytes()))

    # ---- errors

    @contextmanager
    def _errors(self, name: str) -> Iterator[None]:
        try:
            yield
        except self._obstore.exceptions.BaseError as error:
            raise self._failure(name, error) from None

    def _failure(self, name: str, error: Exception) -> StoreError:
        exceptions = self._obstore.exceptions
        has_no_rights = isinstance(error, (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError))
        if has_no_rights or _NO_CREDENTIALS in str(error):
            hint = "check the credentials: variables such as AWS_ACCESS_KEY_ID, or storage_options"
        else:
            hint = "check the address, and the store; then run it again, which goes on where this run ended"
        return Unreachable(f"{self.path(name)}: {self._text(error)}", hint=hint)

    def _text(self, error: Exception) -> str:
        """Return an error as one line, without what the options have."""
        text = " ".join(str(error).partition("Debug source")[0].split())
        return self.without_options(text)[:_LONGEST_ERROR]


class _ObjectOutput(Output):
    """A folder of this machine, whose files become objects."""

    def __init__(self, root: str, options: Mapping[str, str], path: str) -> None:
        self._root, self._options, self._path = root, options, path

    @contextmanager
    def folder(self) -> Iterator[str]:
        with tempfile.TemporaryDirectory(prefix="klamm-") as folder:
            yield folder

    def keep(self, folder: str, path: str) -> str:
        kept = f"{self._path}/{os.path.relpath(path, folder)}"
        ObjectFiles(self._root, self._options).upload(path, kept)
        os.unlink(path)
        return kept


class _Reader:
    """A file of obstore's as Python's files are."""

    closed = False

    def __init__(self, reader: Any) -> None:
        self._reader = reader
        self.seek, self.tell = reader.seek, reader.tell

    def read(self, size: int = -1) -> bytes:
        return bytes(self._reader.read(None if size < 0 else size))

    def close(self) -> None:
        self.closed = True


def _config(options: Mapping[str, str]) -> tuple[Any, Any]:
    """Return storage options as those of the store and those of its HTTP client."""
    if not all(isinstance(each, str) for pair in options.items() for each in pair):
        raise InvalidSetting("storage_options: is invalid", hint="expected text for each: {'aws_region': 'eu-west-1'}")
    config: dict[str, Any] = {}
    client: dict[str, Any] = {}
    client["timeout"] = f"{_TIMEOUT_S}s"
    if "AWS_ALLOW_HTTP" in os.environ:  # which obstore passes over
        client["allow_http"] = os.environ["AWS_ALLOW_HTTP"].lower() == "true"
    for name, value in options.items():
        short = name.lower().removeprefix("aws_")
        if short in _CLIENT:
            client[short] = value.lower() == "true" if short.startswith("allow") else value
        else:
            config[name.lower()] = value
    return config, client


def _sequence_of(name: str) -> int:
    """Return for which change of the journal a file is staged."""
    return int(name.removeprefix(f"{STAGING}/").partition("-")[0])
