"""The memory that all groups of a server hold for their members: ids, subscriptions, assignments."""

from __future__ import annotations

__all__ = ["GROUP_BYTES", "MEMBER_BYTES", "GroupMemory"]

GROUP_BYTES = 2048
MEMBER_BYTES = 2048
"""What the objects of a group, and of a member, take beside what clients send; rounded up."""


class GroupMemory:
    """A count of bytes. It is asked before something is added; what is there may be more, after a restart."""

    def __init__(self) -> None:
        self.used = 0

    def has_space(self, size: int, limit: int) -> bool:
        """Return whether `size` bytes more are within `limit`. Less than before always is."""
        return size <= 0 or self.used + size <= limit
