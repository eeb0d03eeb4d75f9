"""Source code of a function that is being generated, and what both directions share."""

from __future__ import annotations

import struct
from typing import Any

__all__ = ["CODES", "FEW", "Source"]

CODES = {"bool": "?", "int8": "b", "int16": "h", "int32": "i", "int64": "q", "float64": "d", "uuid": "16s"}
"""How `struct` calls types of fixed size. All is big-endian."""
FEW = 9
"""Arrays of fewer numbers have a `Struct` each: replicas, mostly one."""


class Source:
    """Lines, the names that they use, and fresh names for variables."""

    def __init__(self, scope: dict[str, Any]) -> None:
        self.scope = scope
        self._lines: list[str] = []
        self._indent = 1
        self._names = 0

    def __call__(self, line: str) -> None:
        self._lines.append(" " * self._indent + line)

    def indent(self, line: str) -> None:
        """Write a line that opens a block."""
        self(line)
        self._indent += 1

    def dedent(self) -> None:
        self._indent -= 1

    def fresh(self, kind: str) -> str:
        self._names += 1
        return f"{kind}{self._names}"

    def packer(self, codes: str, method: str) -> str:
        """Return the name of a method of the `struct.Struct` of these codes."""
        name = f"{method}_{codes.replace('?', 'Z')}"
        self.scope[name] = getattr(struct.Struct(">" + codes), method)
        return name

    def few(self, code: str, method: str) -> str:
        """Return the name of a list of such methods, by the number of values."""
        name = f"few_{method}_{code}"
        self.scope[name] = [getattr(struct.Struct(f">{count}{code}"), method) for count in range(FEW)]
        return name

    def constant(self, kind: str, value: Any) -> str:
        """Return a name for a value that cannot be written into the source."""
        name = self.fresh(kind)
        self.scope[name] = value
        return name

    def compile(self, head: str, label: str) -> Any:
        text = "\n".join([head, *self._lines])
        exec(compile(text, f"<{label}>", "exec"), self.scope)
        function = self.scope[head.removeprefix("def ").partition("(")[0]]
        function.source = text  # for debugging
        return function
