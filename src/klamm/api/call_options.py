"""The options of calls that create objects with many options: `store.consumer`, `store.producer`, …

Each option is written three times: in the constructor of the object, with its default; in the first overload of the
call, for editors and people; and in a TypedDict, for the other overloads. Tests compare the copies. `help` and
`inspect` show the options of the constructor.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, TypedDict, TypeVar

from klamm.choices import Acks, Compression
from klamm.client.options import check_options
from klamm.client.serde import Serdes
from klamm.times import Duration
from klamm.types import GivenHeaders

__all__ = ["AppendManyOptions", "AppendOptions", "OpenOptions", "checked", "takes_options_of"]

_Call = TypeVar("_Call", bound=Callable[..., Any])
_known: dict[Callable[..., Any], list[str]] = {}  # the options of each call


class OpenOptions(TypedDict, total=False):
    read_only: bool
    create: bool
    force_filesystem: bool
    maintain_every: Duration | None
    busy_timeout: Duration | None


class AppendOptions(TypedDict, total=False):
    partition: int | None
    headers: GivenHeaders | None
    timestamp: int | datetime | None


class AppendManyOptions(TypedDict, total=False):
    acks: Acks
    partition: int | None
    timestamp: int | datetime | None
    compression: Compression | None
    compression_level: int | None


def takes_options_of(*makers: Callable[..., Any], without: str = "") -> Callable[[_Call], _Call]:
    """Show the keyword options of `makers`, with their defaults, in the signature of a call with `**options`."""

    def decorate(call: _Call) -> _Call:
        signature = inspect.signature(call)
        own = [each for each in signature.parameters.values() if each.kind is not inspect.Parameter.VAR_KEYWORD]
        taken = {each.name for each in own} | {"store", without}  # the call passes the store itself
        options = [
            option
            for maker in makers
            for option in inspect.signature(maker).parameters.values()
            if option.kind is inspect.Parameter.KEYWORD_ONLY
            and option.default is not inspect.Parameter.empty
            and option.name not in taken
        ]
        call.__signature__ = signature.replace(parameters=[*own, *options])  # type: ignore[attr-defined]
        _known[call] = [each.name for each in (*own, *options) if each.name != "self"]
        return call

    return decorate


def checked(call: Callable[..., Any], options: Mapping[str, Any], defaults: Serdes) -> dict[str, Any]:
    """Return the options of `call`, with the store's serdes as defaults. Raise TypeError for an unknown option; it
    names the nearest one.
    """
    check_options(f"{call.__name__}()", options, _known[call])
    serdes = Serdes(options.get("serde"), options.get("key_serde")).over(defaults)
    return {**options, **serdes._asdict()}
