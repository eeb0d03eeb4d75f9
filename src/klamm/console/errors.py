"""Requests that the console does not carry out."""

from __future__ import annotations

__all__ = ["RequestError"]


class RequestError(Exception):
    """The response is an error page with this status, problem and hint."""

    def __init__(self, status: int, problem: str, hint: str = "") -> None:
        super().__init__(problem)
        self.status = status
        self.problem = problem
        self.hint = hint
