"""The directory of a store: its catalog, groups and transactions; backup, check and repair."""

from __future__ import annotations

__all__: list[str] = []
