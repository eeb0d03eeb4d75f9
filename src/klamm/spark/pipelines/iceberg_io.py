"""Files of an Iceberg table that are on disk, name and bytes, when they are closed: pyiceberg's own are not synced.

A catalog that has `PROPERTY` writes a table's metadata by this, so that a commit never names a file that a power cut
could take.
"""

from __future__ import annotations

import os
from io import BytesIO
from typing import Any

from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO

from klamm.disk import files

__all__ = ["PROPERTY", "SyncedFileIO"]


class SyncedFileIO(PyArrowFileIO):
    """pyiceberg's access to files; local ones are synced when they are closed."""

    def new_output(self, location: str) -> PyArrowFile:
        """Return a file to write."""
        scheme, _, path = self.parse_location(location, self.properties)
        found = super().new_output(location)
        return _SyncedFile(found, path) if scheme == "file" else found


PROPERTY = {"py-io-impl": f"{__name__}.{SyncedFileIO.__name__}"}


class _SyncedFile(PyArrowFile):
    def __init__(self, file: PyArrowFile, path: str) -> None:
        super().__init__(file.location, path, file._filesystem)

    def create(self, overwrite: bool = False) -> Any:
        if not overwrite and os.path.exists(self._path):
            raise FileExistsError(f"{self._path}: exists already")
        return _Stream(self._path)


class _Stream(BytesIO):
    """A file of metadata, which is small: it is written when it is closed."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self._path = path

    def close(self) -> None:
        if not self.closed:
            data = self.getvalue()
            super().close()
            files.make_directories(os.path.dirname(self._path))
            files.replace(self._path, data)
