"""The exception of a target whose transaction was aborted."""

from __future__ import annotations

__all__ = ["RewindNeeded"]


class RewindNeeded(Exception):
    """The target has aborted what it took since its last commit: read on at its positions."""
