"""The last checkpoint of a Delta table's log, which the package deltalake writes and does not sync.

    _delta_log/<version>.checkpoint.parquet    what the commits up to that version say together
    _delta_log/_last_checkpoint                which one readers begin with

A power cut may leave a checkpoint without its end, or the name of one that is gone. No reader forgives that, though the
commits are all there: such a checkpoint is removed. An archive never removes a commit; others may have (log cleanup),
and then it is an error.
"""

from __future__ import annotations

import json
import logging
import os
import re

from klamm.disk import files
from klamm.errors import KlammError

__all__ = ["remove_torn"]

_NAME = re.compile(r"\d{20}\.checkpoint\.parquet")
_LAST = "_last_checkpoint"
_log = logging.getLogger("klamm.spark")


def remove_torn(log: str) -> None:
    """Remove the last checkpoint if it cannot be read. Raise KlammError if the commits do not say all that it did."""
    names = set(os.listdir(log)) if os.path.isdir(log) else set()
    found = {name for name in names if _NAME.fullmatch(name)}
    named = _named(f"{log}/{_LAST}")
    if named is not None and not any(name.startswith(f"{named[:20]}.checkpoint.") for name in names):
        found.add(named)  # it is gone
    if not found or _is_readable(f"{log}/{max(found)}"):
        return
    last = max(found)
    before = max(found - {last}, default=None)
    for version in range(0 if before is None else int(before[:20]) + 1, int(last[:20]) + 1):
        if f"{version:020}.json" not in names:
            raise KlammError(
                f"{log}/{last}: missing or damaged, and the commit of version {version} is gone, too",
                hint="put the files back from a copy; or begin again: klamm pipeline reset",
            )
    _log.warning("%s/%s: not whole, after a power cut: removed; the commits say the same", log, last)
    files.remove(f"{log}/{_LAST}")
    files.remove(f"{log}/{last}")


def _named(path: str) -> str | None:
    try:
        return f"{int(json.loads(files.read(path))['version']):020}.checkpoint.parquet"
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None


def _is_readable(path: str) -> bool:
    """Return whether all of a Parquet file can be read."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        pq.read_table(path)
    except (OSError, pa.ArrowInvalid):
        return False
    return True
