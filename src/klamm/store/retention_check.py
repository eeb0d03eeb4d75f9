"""The retention check: apply retention.ms and retention.bytes to topics without writers.

A process that appends applies retention when it begins a segment. For idle topics, the maintenance thread of any
process that appends to the store or consumes from it checks every partition each five minutes, as Kafka does
(log.retention.check.interval.ms). `heads` has the time of the last check, so only one of many processes makes it, and a
short-lived process makes one that is due.

The check is cheap: it reads the head of a partition and the index of its oldest segment. Only a partition with
something to expire is opened; after a boot, that recovers it.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from klamm.disk import reserve
from klamm.errors import KlammError, UnknownTopic
from klamm.log import cleaner_checkpoint, head, retention, segment

if TYPE_CHECKING:
    from klamm.store.directory import Core, OpenTopic
    from klamm.store.settings import Settings

__all__ = ["EVERY_S", "run", "wait_s"]

EVERY_S = 300.0
_log = logging.getLogger("klamm")


def wait_s(core: Core) -> float:
    """Return the seconds until the next check; 0: it is due. The first is due minutes after the first use."""
    heads = core.heads
    now_ms, checked_ms = heads.boot_ms(), heads.retention_checked_ms
    if not 0 < checked_ms <= now_ms:  # never since the boot
        heads.retention_checked_ms = checked_ms = max(now_ms, 1)
    return max(0.0, EVERY_S - (now_ms - checked_ms) / 1000)


def run(core: Core, is_over: Callable[[], bool]) -> None:
    """Check all partitions. Stop when `is_over`; another process then makes the check."""
    is_done = True
    try:
        is_done = _check_all(core, is_over)
    finally:
        if is_done:
            core.heads.retention_checked_ms = core.heads.boot_ms()


def _check_all(core: Core, is_over: Callable[[], bool]) -> bool:
    heads = core.heads
    core.heads.check_place(now=True)
    if core.presence is not None:
        core.presence.report_replaced()
    reserve.refill(core.files)
    heads.follow_wall()
    clock_ms = heads.expiry_ms()
    _, topics = core.all_topics()
    for topic in topics:
        settings = topic.topic.settings
        if "delete" not in settings.cleanup_policy or (settings.retention_ms < 0 and settings.retention_bytes < 0):
            continue
        blank = head.empty_slots(heads, topic.topic.partitions)
        for number, slot in enumerate(topic.topic.partitions):
            if is_over():
                return False
            if slot not in blank:
                _check(core, topic, number, slot, clock_ms)
    return True


def _check(core: Core, topic: OpenTopic, number: int, slot: int, clock_ms: int) -> None:
    try:
        if _has_expired(core, topic, number, slot, clock_ms):
            topic.partition(number).cleanup.expire(wait=False)
    except (UnknownTopic, FileNotFoundError):
        pass  # deleted or expired since
    except (KlammError, OSError, head.HeadResult) as error:  # go on with the other partitions
        _log.warning("%s/%d: retention: %s", topic.name, number, error)


def _has_expired(core: Core, topic: OpenTopic, number: int, slot: int, clock_ms: int) -> bool:
    directory, settings = f"{topic.directory}/{number}", topic.topic.settings
    opened = topic.opened_one(number)
    log = opened.log if opened is not None else head.Log(core.heads, slot, directory, None, 1)
    if log.flags & head.DELETED:
        return False
    if log.flags & head.NEEDS_RECOVERY:
        return _files_have_expired(directory, settings, clock_ms)
    now = log.snapshot()
    is_old = settings.retention_ms >= 0 and now.position > 0
    if is_old and retention.age_of_active(directory, now, clock_ms) < clock_ms - settings.retention_ms:
        return True
    start = retention.expired(
        directory,
        now,
        retention_ms=settings.retention_ms,
        retention_bytes=settings.retention_bytes,
        clock_ms=clock_ms,
        contiguous=not cleaner_checkpoint.exists(directory),
    )
    return start > now.log_start


def _files_have_expired(directory: str, settings: Settings, clock_ms: int) -> bool:
    """Return whether files have expired, by their times and sizes: for a log that was not recovered since the boot."""
    statuses = [os.stat(segment.path_of(directory, base)) for base in segment.bases(directory)]
    if not statuses:
        return False
    if 0 <= settings.retention_ms < clock_ms - statuses[0].st_mtime_ns // 1_000_000:
        return True
    return 0 <= settings.retention_bytes <= sum(status.st_size for status in statuses[1:])
