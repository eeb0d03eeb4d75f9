"""Generate the function that encodes one version of a message.

    encode(message) -> parts
    encode_in_steps(message) -> an iterator; after each struct of an array, the parts since its user has cleared them

Parts are bytes and, each by itself and untouched, the records: whatever has a length in bytes will do, such as a view
of a file that `sendfile` will send. Fields of fixed size that follow each other, with the length or count behind them
and empty tagged fields, are one `pack`.

A value that does not fit its field is our own mistake and raises what Python raises (struct.error, TypeError, …).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from klamm.kafka.wire.decoder import has_records
from klamm.kafka.wire.notation import SIZES, Field, Shape
from klamm.kafka.wire.source import CODES, FEW, Source

if TYPE_CHECKING:
    from klamm.kafka.wire.structs import Struct

__all__ = ["Encoder", "StepEncoder", "make_encoder", "make_step_encoder", "varint_bytes"]

Encoder = Callable[[Any], list[Any]]
StepEncoder = Callable[[Any], Iterator[list[Any]]]

_SMALL = [bytes([value]) for value in range(128)]


def varint_bytes(value: int) -> bytes:
    """Return an unsigned varint."""
    if value < 0x80:
        return _SMALL[value]
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def make_encoder(label: str, shape: Shape, version: int, flexible: bool, classes: dict[str, type[Struct]]) -> Encoder:
    encoder: Encoder = _Writer(label, version, flexible, classes).function(shape)
    return encoder


def make_step_encoder(
    label: str, shape: Shape, version: int, flexible: bool, classes: dict[str, type[Struct]]
) -> StepEncoder:
    """Like `make_encoder`; the function is a generator."""
    encoder: StepEncoder = _Writer(label, version, flexible, classes).generator(shape)
    return encoder


class _Writer:
    """Variables: w appends to `out`, the bytes since the last records; `parts` is what came before. In steps there is
    `out` alone.
    """

    def __init__(self, label: str, version: int, flexible: bool, classes: dict[str, type[Struct]]) -> None:
        self.label = label
        self.version = version
        self.flexible = flexible
        self.classes = classes
        self.put = Source({"pack": struct.pack, "small": _SMALL, "varint": varint_bytes})
        self.write = "w"
        self.waiting: list[tuple[str, str]] = []  # codes and values of the next pack
        self.has_steps = False

    def function(self, shape: Shape) -> Any:
        put = self.put
        with_records = has_records(shape)
        put("out = []; w = out.append")
        if with_records:
            put("parts = []")
        self.struct(shape, "o")
        self.flush()
        if with_records:
            put("if out: parts.append(b''.join(out))")
            put("return parts")
        else:
            put("return [b''.join(out)]")
        return put.compile("def encode(o):", self.label)

    def generator(self, shape: Shape) -> Any:
        self.has_steps = True
        self.put("out = []; w = out.append")
        self.struct(shape, "o")
        self.flush()
        self.put("yield out")
        return self.put.compile("def encode_in_steps(o):", self.label)

    # Structs and fields

    def struct(self, shape: Shape, value: str) -> None:
        fields = [field for field in shape.fields if field.exists(self.version)]
        for field in fields:
            if field.tag is None:
                self.field(field, f"{value}.{field.name}")
        if self.flexible:
            tagged = [(field, f"{value}.{field.name}") for field in fields if field.tag is not None]
            if tagged:
                self.tags(tagged)
            else:
                self.waiting.append(("x", ""))  # none

    def field(self, field: Field, value: str) -> None:
        nullable = field.nullable(self.version)
        if field.is_array:
            self.array(field, nullable, value)
        elif field.shape is not None:
            if nullable:
                self.nullable_struct(field.shape, value)
            else:
                self.struct(field.shape, value)
        elif field.type in CODES:
            self.waiting.append((CODES[field.type], value))
        else:
            self.bytes(field.type, nullable, value)

    def bytes(self, kind: str, nullable: bool, value: str) -> None:
        """Write code for a string, bytes, or records."""
        put = self.put
        x, n = put.fresh("x"), put.fresh("n")
        put(f"{x} = {value}")
        encoded = f"{x} = {x}.encode(); " if kind == "string" else ""
        if nullable:
            put(f"if {x} is None: {n} = {'0' if self.flexible else '-1'}; {x} = b''")
            put(f"else: {encoded}{n} = len({x}){' + 1' if self.flexible else ''}")
        else:
            put(f"{encoded}{n} = len({x}){' + 1' if self.flexible else ''}")
        self.length(n, "h" if kind == "string" else "i")
        if kind == "records":
            self.flush()
            add = "out.append" if self.has_steps else "parts.append(b''.join(out)); out.clear(); parts.append"
            put(f"if {n} > {1 if self.flexible else 0}: {add}({x})")
        else:
            self.flush()
            put(f"{self.write}({x})")

    def array(self, field: Field, nullable: bool, value: str) -> None:
        put = self.put
        x, n = put.fresh("x"), put.fresh("n")
        put(f"{x} = {value}")
        plus = " + 1" if self.flexible else ""
        if nullable:
            put(f"if {x} is None: {n} = {'0' if self.flexible else '-1'}; {x} = ()")
            put(f"else: {n} = len({x}){plus}")
        else:
            put(f"{n} = len({x}){plus}")
        self.length(n, "i")
        self.flush()
        if field.type in SIZES:
            put(f"{n} = len({x})")
            few = put.few(CODES[field.type], "pack")
            put(f"if {n} < {FEW}: {self.write}({few}[{n}](*{x}))")
            put(f"else: {self.write}(pack(f'>{{{n}}}{CODES[field.type]}', *{x}))")
            return
        item = put.fresh("o")
        put.indent(f"for {item} in {x}:")
        if field.shape is not None:
            self.struct(field.shape, item)
        else:
            self.bytes(field.type, False, item)
        self.flush()
        if self.has_steps and field.shape is not None and self.write == "w":  # else it is in tagged fields
            put("yield out")
        put.dedent()

    def nullable_struct(self, shape: Shape, value: str) -> None:
        put = self.put
        x = put.fresh("x")
        self.flush()
        put(f"{x} = {value}")
        put(f"if {x} is None: {self.write}(b'\\xff')")
        put.indent("else:")
        self.waiting.append(("b", "1"))
        self.struct(shape, x)
        self.flush()
        put.dedent()

    def tags(self, tagged: list[tuple[Field, str]]) -> None:
        put = self.put
        self.flush()
        tagged.sort(key=lambda each: each[0].tag or 0)
        present = [self.differs(field, value) for field, value in tagged]
        above = self.write
        found = put.fresh("g")
        put.indent(f"if {' or '.join(present)}:")
        put(f"{found} = []")
        for (field, value), condition in zip(tagged, present, strict=True):
            put.indent(f"if {condition}:")
            out = put.fresh("m")
            self.write = put.fresh("w")
            put(f"{out} = []; {self.write} = {out}.append")
            self.field(field, value)
            self.flush()
            put(f"{out} = b''.join({out})")
            put(f"{found}.append({varint_bytes(field.tag or 0)!r} + varint(len({out})) + {out})")
            put.dedent()
        self.write = above
        put(f"{above}(varint(len({found}))); {above}(b''.join({found}))")
        put.dedent()
        put(f"else: {above}(b'\\0')")

    def differs(self, field: Field, value: str) -> str:
        """Return code for whether a tagged field has to be sent."""
        if field.is_array:
            return value
        if field.shape is not None:
            return f"({value} is not None and {value} != {self.put.constant('D', self.classes[field.shape.name]())})"
        return f"{value} is not None" if field.default is None else f"{value} != {field.default!r}"

    # Pieces

    def length(self, n: str, code: str) -> None:
        if self.flexible:
            self.flush()
            self.put(f"{self.write}(small[{n}] if {n} < 128 else varint({n}))")
        else:
            self.waiting.append((code, n))

    def flush(self) -> None:
        """Pack what waits."""
        if not self.waiting:
            return
        codes = "".join(code for code, _ in self.waiting)
        values = ", ".join(value for _, value in self.waiting if value)
        self.waiting.clear()
        if set(codes) == {"x"}:
            self.put(f"{self.write}({bytes(len(codes))!r})")
        else:
            self.put(f"{self.write}({self.put.packer(codes, 'pack')}({values}))")
