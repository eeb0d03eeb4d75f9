"""Base class of the objects that calls on a store make, as `store.consumer()` makes a Consumer.

The classes are public, for annotations. Called by a program, they raise a TypeError that names the call to use.
"""

from __future__ import annotations

from typing import Any, ClassVar, Self

from klamm.other_names import explains_names

__all__ = ["StoreHandle"]


@explains_names
class StoreHandle:
    """Base of `class Consumer(StoreHandle, by="store.consumer(…)", of=Core)`: made of a Core, which programs lack."""

    __slots__ = ()

    _made_by: ClassVar[str]
    _made_of: ClassVar[type]

    def __init_subclass__(cls, *, by: str | None = None, of: type | None = None, **more: Any) -> None:
        super().__init_subclass__(**more)
        if by is not None and of is not None:
            cls._made_by, cls._made_of = by, of

    def __new__(cls, *parts: Any, **_: Any) -> Self:
        if not parts or not isinstance(parts[0], cls._made_of):
            raise TypeError(f"{cls.__name__}: not made by calling the class; use {cls._made_by}")
        return super().__new__(cls)
