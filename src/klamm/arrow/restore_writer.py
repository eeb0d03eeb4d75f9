"""Rows with offsets -> a log in which each record gets its offset: to restore records from elsewhere.

Batches have contiguous offsets: offsets without a row are gaps within a batch, as compaction leaves them, or batches
without records. A batch is appended only at its own offset: if the log ends at another one, because another writer has
appended, that is an error. So the end of the log always shows how far the restore has come.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from klamm.arrow.encoding import SMALLEST_LIMIT, Rows, numbers
from klamm.arrow.schema import pyarrow
from klamm.batch import Builder, NumberColumn, encode_columns, patch
from klamm.errors import InvalidRecord, RecordTooLarge

if TYPE_CHECKING:
    import pyarrow as pa

    from klamm.log.partition import Partition

__all__ = ["RestoreWriter"]

_MOST_OFFSETS = (1 << 31) - 1  # of a batch


class RestoreWriter:
    """Fills one partition."""

    def __init__(self, log: Partition) -> None:
        self._log = log
        self._builder = Builder(max(SMALLEST_LIMIT, log.settings.max_message_bytes))
        self.next_offset = log.ends().end
        """Where the log goes on; rows that are not appended yet come after it."""
        self.rows = 0
        """That were appended."""

    def take(self, batch: pa.RecordBatch) -> None:
        """Take rows (key, value, headers, timestamp, offset), ordered by offset. Skip rows that the log has already."""
        import pyarrow.compute as pc

        pa = pyarrow()
        offsets = batch.column("offset")
        if offsets.null_count:
            raise InvalidRecord("the column offset is null in a row")
        known: Any = pc.less(offsets, pa.scalar(self.next_offset, pa.int64()))
        start = known.true_count
        rows = Rows.of(batch.select(["key", "value", "headers", "timestamp"]))
        offset_column = numbers(offsets, "offset")
        while start < batch.num_rows:
            done = self._encode(rows, offset_column, start)
            if done < rows.rows:
                if self._builder.count:
                    self.give()
                else:  # too far away for one batch
                    self.skip_to(offsets[done].as_py())
            start = done

    def _encode(self, rows: Rows, offset_column: NumberColumn, start: int) -> int:
        try:
            return encode_columns(
                self._builder,
                start,
                rows.rows,
                rows.value,
                rows.key,
                rows.timestamps,
                rows.headers,
                offsets=offset_column,
                base_offset=self.next_offset,
            )
        except RecordTooLarge as error:
            raise RecordTooLarge(
                f"{self._log.topic}/{self._log.number}: {error.message}", hint="raise the topic's max.message.bytes"
            ) from None

    def give(self) -> None:
        """Append the open batch."""
        builder = self._builder
        if builder.count:
            self._log.append_at(self.next_offset, builder.seal())
            self.next_offset += builder.count + builder.skipped
            self.rows += builder.count
            builder.clear()

    def skip_to(self, offset: int) -> None:
        """Skip the offsets up to `offset`: no record gets them."""
        self.give()
        while self.next_offset < offset:
            count = min(offset - self.next_offset, _MOST_OFFSETS)
            self._log.append_at(self.next_offset, bytearray(patch.empty(0, count, 0)))
            self.next_offset += count
