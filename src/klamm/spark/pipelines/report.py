"""The report of a pipeline's run, for people and for programs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Progress", "Report"]

Progress = Callable[[int, int | None], object]
"""How much is done, and the total (None: unknown); the unit depends on the pipeline: offsets, bytes."""


@dataclass(frozen=True)
class Report:
    """The report of one run."""

    pipeline: str
    source: str
    """Topics, or the folder, that it read."""
    target: str
    """The topic or folder that it wrote."""
    rows_read: int
    rows_written: int
    seconds: float
    batches: int = 0
    """Micro-batches."""
    dead_letters: int = 0
    """Records that did not fit, and went to the dead-letter topic."""
    late: int = 0
    """Records that came after their window was closed."""
    details: Mapping[str, Any] = field(default_factory=dict)
    """Results that only this pipeline has, ready for JSON."""

    def to_dict(self) -> dict[str, Any]:
        """Return the report as one JSON object."""
        return {
            "pipeline": self.pipeline,
            "source": self.source,
            "target": self.target,
            "rows_read": self.rows_read,
            "rows_written": self.rows_written,
            "dead_letters": self.dead_letters,
            "late": self.late,
            "batches": self.batches,
            "seconds": round(self.seconds, 3),
            **self.details,
        }

    def __str__(self) -> str:
        return "\n".join(f"{name.replace('_', ' '):14}  {value}" for name, value in self.to_dict().items())
