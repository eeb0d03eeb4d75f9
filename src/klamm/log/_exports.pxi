"""Exports for Python modules: flags, events and sizes of the slot, and the tuples of snapshots."""

DELETED, READ_ONLY, SYNC_FAILED, NEEDS_RECOVERY = FLAG_DELETED, FLAG_READ_ONLY, FLAG_SYNC_FAILED, FLAG_NEEDS_RECOVERY
NEW_HEAD = FLAG_NEW_HEAD
OPENED, ROLLED, RECOVERY_POINT = EVENT_OPENED, EVENT_ROLLED, EVENT_RECOVERY_POINT
MISSING_INDEX = EVENT_MISSING_INDEX
Snapshot = namedtuple("Snapshot", "next_offset active_base position stable_offset max_timestamp log_start seq leader_epoch")
Evidence = namedtuple("Evidence", "exists flushed_offset next_offset log_start leader_epoch had_point")
MAGIC = HEADS_MAGIC[:8]
INDEX_MAGIC = b"KLAMMIDX"
INDEX_VERSION = KNOWN_INDEX
FORMAT = 2
LIFE = LIFE_AT
SLOT_BYTES = SLOT_SIZE
ONE_BYTES = ONE_ROOM
REPEATED = R_REPEATED
EVENTFUL = -(1 << 61)               # append_one: EVENTFUL - offset is an offset, and there are events to see to
MAX_SLOTS = 1 << 20                 # a mapping of 1 GiB, most of it beyond the end of the file
