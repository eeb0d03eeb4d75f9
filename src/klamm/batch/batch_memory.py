"""Memory that batches are decompressed into, one after the other.

    BMM1  what a reader has of decompressed batches is as much as the largest of them, whatever their sizes: the memory
          of one is used again for the next, or given back to the system before there is other memory.

It is mapped, not allocated. An allocator keeps what was freed: after a batch of 8 MiB the C library holds on to these,
and maps a batch that is a little larger beside them.
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
        """Return memory of `size` bytes, at least one; that which was returned before is not used any more."""
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
        """Give the memory back to the system, once there is no view of it."""
        self._memory = None
