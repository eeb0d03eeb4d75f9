"""How a command ends, as a shell sees it."""

from __future__ import annotations

__all__ = ["DAMAGED", "FAILED", "FINE", "MISUSED"]

FINE, FAILED, MISUSED, DAMAGED = range(4)
