"""Generate the function that decodes one version of a message.

    decode(data, position, elements) -> message; what follows it is not looked at

Fields of fixed size that follow each other, with the length or count behind them, are one `unpack_from`. Strings and
bytes are copied, for they are short and outlive the buffer; records are views into it.

Promises
  DEC1  Whatever the bytes, decoding gives a message or MalformedMessage: no other error, no byte beyond the end.
  DEC2  A count is believed only if what remains could hold as many elements, and MAX_ELEMENTS bounds them all together,
        tagged fields included: so neither time nor memory grows faster than the bytes, nor beyond that bound.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from klamm.kafka.wire.errors import MalformedMessage
from klamm.kafka.wire.notation import SIZES, Field, Shape
from klamm.kafka.wire.source import CODES, FEW, Source

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from klamm.kafka.wire.structs import Struct

__all__ = ["MAX_ELEMENTS", "MAX_STRING", "Decoder", "has_records", "make_decoder", "skip_tags", "varint"]

MAX_ELEMENTS = 1 << 18
"""Elements of all arrays of a message, and tagged fields that we do not know."""
MAX_STRING = 0x7FFF
"""Bytes of a string, also where its length could say more."""
_TOO_MANY = ", too many elements in all (request.max.elements)"

if TYPE_CHECKING:
    Decoder = Callable[[Buffer, int, int], Any]


def varint(data: bytes | memoryview, position: int) -> tuple[int, int]:
    """Return an unsigned varint of at most 32 bits, and the position behind it. Raise IndexError at the end."""
    value = shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value > 0xFFFFFFFF:
                break
            return value, position
        shift += 7
        if shift > 28:
            break
    raise _bad(position - 1, "a varint of more than 32 bits")


def skip_tags(data: bytes | memoryview, position: int, elements: int = 0) -> tuple[int, int]:
    """Skip the tagged fields at `position`. Return the position behind them, and `elements` plus their number."""
    count, position = varint(data, position)
    elements += count
    if elements > MAX_ELEMENTS:
        raise _bad(position, f"{count} tagged fields{_TOO_MANY}")
    for _ in range(count):
        _, position = varint(data, position)
        size, position = varint(data, position)
        position += size
    if position > len(data):
        raise _bad(position, "the end of tagged fields lies behind that of the message")
    return elements, position


def _bad(position: int, what: str) -> MalformedMessage:
    return MalformedMessage(f"byte {position}: {what}")


def make_decoder(label: str, shape: Shape, version: int, flexible: bool, classes: dict[str, type[Struct]]) -> Decoder:
    decoder: Decoder = _Reader(label, version, flexible, classes).function(shape)
    return decoder


def has_records(shape: Shape) -> bool:
    return any(field.type == "records" or (field.shape and has_records(field.shape)) for field in shape.fields)


class _Reader:
    """Variables: b the data, e its end, p the position, k the elements so far."""

    def __init__(self, label: str, version: int, flexible: bool, classes: dict[str, type[Struct]]) -> None:
        self.label = label
        self.version = version
        self.flexible = flexible
        self.views = False
        self.put = Source(
            {
                "Malformed": MalformedMessage,
                "bad": _bad,
                "new": object.__new__,
                "skip_tags": skip_tags,
                "struct_error": struct.error,
                "unpack_from": struct.unpack_from,
                "varint": varint,
                **{f"C_{name}": made for name, made in classes.items()},
            }
        )
        self.waiting: list[tuple[str, str]] = []  # codes and targets of the next unpack_from

    def function(self, shape: Shape) -> Any:
        put = self.put
        self.views = has_records(shape)
        kind = "memoryview" if self.views else "bytes"  # bytes are quicker to take apart
        put.indent("try:")
        put(f"if type(b) is not {kind}: b = {kind}(b)")
        put("e = len(b)")
        self.struct(shape, "o")
        self.flush()
        put("return o")
        put.dedent()
        put(f"except (IndexError, struct_error): raise Malformed('{self.label}: ends too early') from None")
        put(f"except UnicodeDecodeError: raise Malformed(f'{self.label}: byte {{p}}: not UTF-8') from None")
        put(f"except Malformed as error: raise Malformed(f'{self.label}: {{error.message}}') from None")
        return put.compile("def decode(b, p=0, k=0):", self.label)

    # Structs and fields

    def struct(self, shape: Shape, target: str) -> None:
        self.put(f"{target} = new(C_{shape.name})")
        tagged = []
        for field in shape.fields:
            attr = f"{target}.{field.name}"
            if not field.exists(self.version):
                self.put(f"{attr} = {self.default(field)}")
            elif field.tag is None:
                self.field(field, attr)
            else:
                self.put(f"{attr} = {self.default(field)}")
                tagged.append((field, attr))
        if self.flexible:
            self.tags(tagged)

    def default(self, field: Field) -> str:
        return "[]" if field.is_array and field.default == () else repr(field.default)

    def field(self, field: Field, target: str) -> None:
        if field.is_array:
            self.array(field, target)
        elif field.shape is not None:
            if field.nullable(self.version):
                self.nullable_struct(field.shape, target)
            else:
                self.struct(field.shape, target)
        elif field.type in CODES:
            self.waiting.append((CODES[field.type], target))
        else:
            self.bytes(field.type, field.nullable(self.version), field.name, target)

    def bytes(self, kind: str, nullable: bool, name: str, target: str) -> None:
        """Write code for a string, bytes, or records."""
        put = self.put
        n, end = self.length("h" if kind == "string" else "i"), put.fresh("q")
        put.indent(f"if {n} >= 0:")
        put(f"{end} = p + {n}")
        limit = f" or {n} > {MAX_STRING}" if kind == "string" and self.flexible else ""
        put(f"if {end} > e{limit}: raise bad(p, f'{name} of {{{n}}} bytes')")
        if kind == "string":
            put(f"{target} = str(b[p:{end}], 'utf-8')" if self.views else f"{target} = b[p:{end}].decode()")
        elif kind == "bytes" and self.views:
            put(f"{target} = bytes(b[p:{end}])")
        else:
            put(f"{target} = b[p:{end}]")
        put(f"p = {end}")
        put.dedent()
        self.null(n, nullable, name, target)

    def array(self, field: Field, target: str) -> None:
        put = self.put
        n = self.length("i")
        put.indent(f"if {n} >= 0:")
        put(f"k += {n}")
        size = self.least_size(field)
        put(f"if k > {MAX_ELEMENTS}: raise bad(p, f'{{{n}}} {field.name}{_TOO_MANY}')")
        put(f"if {n} * {size} > e - p: raise bad(p, f'{{{n}}} {field.name}')")
        if field.type in SIZES:
            assert field.type != "uuid", "no message has an array of them"
            few = put.few(CODES[field.type], "unpack_from")
            put(f"if {n} < {FEW}: {target} = list({few}[{n}](b, p))")
            put(f"else: {target} = list(unpack_from(f'>{{{n}}}{CODES[field.type]}', b, p))")
            put(f"p += {n} * {size}")
        else:
            items, item = put.fresh("a"), put.fresh("o")
            put(f"{target} = {items} = []")
            put.indent(f"for _ in range({n}):")
            if field.shape is not None:
                self.struct(field.shape, item)
            else:
                self.bytes(field.type, False, field.name, item)
            self.flush()
            put(f"{items}.append({item})")
            put.dedent()
        put.dedent()
        self.null(n, field.nullable(self.version), field.name, target)

    def nullable_struct(self, shape: Shape, target: str) -> None:
        put = self.put
        marker = put.fresh("n")
        self.waiting.append(("b", marker))
        self.flush()
        put(f"if {marker} < 0: {target} = None")
        put.indent("else:")
        item = put.fresh("o")
        self.struct(shape, item)
        self.flush()
        put(f"{target} = {item}")
        put.dedent()

    def tags(self, tagged: list[tuple[Field, str]]) -> None:
        put = self.put
        n = put.fresh("n")
        self.waiting.append(("B", n))
        self.flush()
        if not tagged:
            put(f"if {n}: k, p = skip_tags(b, p - 1, k)")
            return
        tag, size, end = put.fresh("t"), put.fresh("s"), put.fresh("q")
        put.indent(f"if {n}:")
        put(f"if {n} > 127: {n}, p = varint(b, p - 1)")
        put(f"k += {n}")
        put(f"if k > {MAX_ELEMENTS}: raise bad(p, f'{{{n}}} tagged fields{_TOO_MANY}')")
        put.indent(f"for _ in range({n}):")
        put(f"{tag}, p = varint(b, p); {size}, p = varint(b, p); {end} = p + {size}")
        put(f"if {end} > e: raise bad(p, f'tagged field of {{{size}}} bytes')")
        word = "if"
        for field, attr in tagged:
            put.indent(f"{word} {tag} == {field.tag}:")
            if field.shape is not None and not field.is_array:
                item = put.fresh("o")
                self.struct(field.shape, item)
                self.flush()
                put(f"{attr} = None if {item} == {put.constant('D', put.scope[f'C_{field.shape.name}']())} else {item}")
            else:
                self.field(field, attr)
                self.flush()
            put(f"if p != {end}: raise bad(p, 'not where {field.name} ends')")
            put.dedent()
            word = "elif"
        put(f"p = {end}")
        put.dedent()
        put.dedent()

    # Pieces

    def length(self, code: str) -> str:
        """Return code for the length of what follows; -1 for null."""
        put = self.put
        n = put.fresh("n")
        self.waiting.append(("B" if self.flexible else code, n))
        self.flush()
        if self.flexible:
            put(f"if {n} > 127: {n}, p = varint(b, p - 1)")
            put(f"{n} -= 1")
        return n

    def null(self, n: str, nullable: bool, name: str, target: str) -> None:
        """Write code for a negative length."""
        if not nullable:
            self.put(f"else: raise bad(p, '{name} is null')")
        elif self.flexible:
            self.put(f"else: {target} = None")
        else:
            self.put(f"elif {n} == -1: {target} = None")
            self.put(f"else: raise bad(p, f'{name} of {{{n}}} bytes')")

    def flush(self) -> None:
        """Unpack what waits."""
        if not self.waiting:
            return
        codes = "".join(code for code, _ in self.waiting)
        targets = ", ".join(target for _, target in self.waiting)
        self.waiting.clear()
        if codes == "B":
            self.put(f"{targets} = b[p]; p += 1")
        else:
            size = struct.calcsize(">" + codes)
            self.put(f"{targets}, = {self.put.packer(codes, 'unpack_from')}(b, p); p += {size}")

    def least_size(self, field: Field) -> int:
        """Return the number of bytes that an element of the array takes at least."""
        if field.shape is None:
            return SIZES.get(field.type, 1 if self.flexible else 2 if field.type == "string" else 4)
        return self.least_struct(field.shape)

    def least_struct(self, shape: Shape) -> int:
        size = 1 if self.flexible else 0
        for field in shape.fields:
            if not field.exists(self.version) or field.tag is not None:
                continue
            if field.is_array:
                size += 1 if self.flexible else 4
            elif field.shape is not None:
                size += 1 if field.nullable(self.version) else self.least_struct(field.shape)
            else:
                size += SIZES.get(field.type, 1 if self.flexible else 2 if field.type == "string" else 4)
        return size
