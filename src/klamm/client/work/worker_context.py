"""The context of a worker: the handler, the queue of records, and where outcomes go."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from klamm.client.consume.record_format import converted

if TYPE_CHECKING:
    from klamm.client.consume.read_engine import ReadFormat
    from klamm.client.work.outcomes import Outcomes
    from klamm.client.work.run_options import RunSettings
    from klamm.client.work.tasks import Task, Tasks

__all__ = ["WorkerContext"]


@dataclass(frozen=True, slots=True)
class WorkerContext:
    """The context of one run. Thread-safe, for any of its workers."""

    handler: Callable[[Any], Any]
    read_format: ReadFormat
    settings: RunSettings
    tasks: Tasks
    outcomes: Outcomes
    wake: Callable[[], None]
    """Called when a worker has ended the run."""

    @property
    def timeout_s(self) -> float | None:
        """How long a handler may take."""
        timeout_s: float | None = self.settings.timeout
        return timeout_s

    def call_handler(self, task: Task) -> Any:
        """Call the handler with the task's record, after its serde."""
        return self.handler(converted(task.record, self.read_format))

    def timeout_error(self, task: Task) -> TimeoutError:
        return TimeoutError(f"{task}: the handler took longer than {self.timeout_s:g} s")

    def fail(self, worker: int | None, error: BaseException) -> None:
        """End the run with an error."""
        self.tasks.fail(worker, error)
        self.wake()
