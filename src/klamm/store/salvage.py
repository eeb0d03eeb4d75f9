"""Salvage: read the records that were cut off a log, in the files `<segment>.log.cut-<time>`.

Recovery writes such a file when it cuts a torn tail, repair when it removes damage. Every whole batch in it with a
right CRC is returned record by record, with the offsets it had; other records may have these offsets by now.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterator

from klamm.batch import Record, decode
from klamm.errors import readable
from klamm.store.catalog import Topic
from klamm.store.damage import Batch, batches
from klamm.store.layout import DAMAGED
from klamm.types import Cut

__all__ = ["cuts_of", "records_in", "set_aside"]

_NAME = re.compile(r"(\d{20})\.log\.cut-(\d+)")


def cuts_of(files: str, topic: Topic) -> list[Cut]:
    """Return the files of bytes that were cut off the logs of a topic, oldest first."""
    found = []
    for partition in range(len(topic.partitions)):
        directory = f"{files}/topics/{topic.directory}/{partition}"
        for name in sorted(os.listdir(directory)) if os.path.isdir(directory) else ():
            if match := _NAME.fullmatch(name):
                path = f"{directory}/{name}"
                found.append(Cut(topic.name, partition, readable(path), os.stat(path).st_size, int(match[2])))
    return sorted(found, key=lambda cut: (cut.cut_ms, cut.partition, cut.path))


def set_aside(store_path: str) -> list[str]:
    """Return the paths of other things that repair set aside: a damaged klamm.db, orphans."""
    patterns = (f"{DAMAGED}*", "orphans/*")
    return sorted(path for pattern in patterns for path in glob.glob(f"{glob.escape(store_path)}/{pattern}"))


def records_in(cut: Cut) -> Iterator[Record]:
    """Return the records of every whole batch; those of open and aborted transactions, too."""
    with open(cut.path, "rb") as file:
        for each in batches(cut.path, 0, cut.size, contiguous=False):
            if isinstance(each, Batch) and not each.header.is_control:
                file.seek(each.position)
                yield from decode(file.read(each.header.size), topic=cut.topic, partition=cut.partition)
