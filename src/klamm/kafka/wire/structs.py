"""Classes generated from shapes, with slots, defaults and equality. One class serves all versions of a message.

    FETCH.response.Partition(partition_index=0, error_code=0, high_watermark=7, records=view)

A field that a version lacks is ignored by its encoder, and has its default after decoding.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from klamm.kafka.wire.notation import Shape

__all__ = ["Struct", "make"]


class Struct:
    """A message, or a part of one. Mutable, compared by value."""

    __slots__: tuple[str, ...] = ()

    if TYPE_CHECKING:  # fields are made at run time

        def __init__(self, **fields: Any) -> None: ...
        def __getattr__(self, name: str) -> Any: ...
        def __setattr__(self, name: str, value: Any) -> None: ...

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in self.__slots__)

    __hash__ = None  # type: ignore[assignment]  # mutable

    def __repr__(self) -> str:
        return f"{type(self).__qualname__}({', '.join(f'{name}={getattr(self, name)!r}' for name in self.__slots__)})"


def make(shape: Shape, owner: str) -> type[Struct]:
    """Return the class of a struct; `owner` is the message it belongs to."""
    arguments = []
    body = []
    scope: dict[str, Any] = {"_empty": ()}
    for field in shape.fields:
        if field.default == () and field.is_array:
            arguments.append(f"{field.name}=_empty")
            body.append(f" self.{field.name} = [] if {field.name} is _empty else {field.name}")
        else:
            arguments.append(f"{field.name}={field.default!r}")
            body.append(f" self.{field.name} = {field.name}")
    signature = f"self, *, {', '.join(arguments)}" if arguments else "self"
    exec(f"def __init__({signature}):\n" + "\n".join(body or [" pass"]), scope)
    name = shape.name if shape.name == owner else f"{owner}.{shape.name}"
    members = {
        "__slots__": tuple(field.name for field in shape.fields),
        "__init__": scope["__init__"],
        "__module__": __name__,
        "__qualname__": name,
    }
    return type(shape.name, (Struct,), members)
