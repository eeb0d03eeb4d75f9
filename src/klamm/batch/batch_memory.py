"""Memory into which batches are decompressed, one after the other.

    BMM1  The memory of a reader for decompressed batches is at most that of the largest batch: it is used again for the
          next batch, or returned to the system before other memory is taken.

It is mapped, not allocated. An allocator keeps freed memory: after a batch of 8 MiB the C library retains these, and
maps other memory for a batch that is a little larger.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mmap import mmap

__all__ = ["BatchMemory"]


class BatchMemory:
    """Memory for one thread, and one batch at a time."""

    __slots__ = ("_memory",)

    def __init__(self) -> None:
        self._memory: mmap | None = None

    def take(self, size: int) -> memoryview:
        """Return memory of `size` bytes, at least one. The caller must not use the memory of earlier calls any more."""
        memory = self._memory
        if memory is None or len(memory) < size:
            import mmap

            memory = self._memory = None  # given back before there is more
            memory = self._memory = mmap.mmap(-1, size)
            if hasattr(mmap, "MADV_HUGEPAGE"):
                with suppress(OSError):  # a kernel without huge pages
                    memory.madvise(mmap.MADV_HUGEPAGE)
        return memoryview(memory)[:size]

    def release(self) -> None:
        """Return the memory to the system, once no view of it exists."""
        self._memory = None
