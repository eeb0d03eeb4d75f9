"""What tests of batches draw from: records as (key, value, headers, timestamp), and batches made of them."""

from __future__ import annotations

import os
from collections.abc import Sequence

from hypothesis import settings
from hypothesis import strategies as st

from klamm.batch import Builder

EXAMPLES = int(os.environ.get("KLAMM_EXAMPLES", "100"))
SOME = settings(max_examples=min(EXAMPLES, 100))
"""For tests whose examples take long: fewer where they take even longer, never more."""

Record = tuple[bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...], int]

payloads = st.none() | st.binary(max_size=40) | st.binary(min_size=60, max_size=300)
header_lists = st.lists(st.tuples(st.text(max_size=8), st.none() | st.binary(max_size=12)), max_size=3).map(tuple)
timestamps = st.integers(0, 1 << 45) | st.integers(1_700_000_000_000, 1_700_000_001_000)
records = st.tuples(payloads, payloads, st.just(()) | header_lists, timestamps)
record_lists = st.lists(records, min_size=1, max_size=12)
codecs = st.integers(0, 4)


def batch_of(given: Sequence[Record], codec: int = 0, base_offset: int = 0, **seal: int) -> bytes:
    """One sealed batch that holds the records."""
    builder = Builder(1 << 20)
    for key, value, headers, timestamp in given:
        assert builder.add(key, value, headers, timestamp) >= 0
    return base_offset.to_bytes(8, "big") + bytes(builder.seal(codec, **seal))[8:]


def log_of(*runs: tuple[Sequence[Record], int]) -> bytes:
    """Batches end to end, of (records, codec) each."""
    data, offset = b"", 0
    for given, codec in runs:
        data += batch_of(given, codec, offset)
        offset += len(given)
    return data
