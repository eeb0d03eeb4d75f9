"""The directory: what topics there are, where their logs lie, copies of it and checks on it."""

from __future__ import annotations

__all__: list[str] = []
