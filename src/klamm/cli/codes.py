"""The exit codes of commands."""

from __future__ import annotations

__all__ = ["DAMAGED", "FAILED", "FINE", "MISUSED"]

FINE, FAILED, MISUSED, DAMAGED = range(4)
