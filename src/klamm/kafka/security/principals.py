"""The principal of a client certificate: its distinguished name, and `ssl.principal.mapping.rules`, as in Kafka.

    RULE:pattern/replacement/[LU]     if the pattern matches the whole name: the replacement, in lower or upper case
    DEFAULT                           the name as it is

Rules are separated by commas, and the first that matches counts. If none does, the client is not let in. `$1` in a
replacement is the first group of the pattern. The name is written as Java writes it, by RFC 2253, the most specific
part first: CN=alice,OU=billing,O=Example. Attributes without a keyword there are numbers: 1.2.840.113549.1.9.1=#1603….

Promise
  PRI1  A certificate stands for whom it stands for in Kafka, byte for byte. What a name contains cannot pass for a part
        of it: it is escaped, as Java does, and nothing is trimmed.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from klamm.errors import InvalidSetting

__all__ = ["PrincipalRules", "distinguished_name"]

_SETTING = "ssl.principal.mapping.rules"
_RULE = re.compile(
    r"\s*(?:(?P<default>DEFAULT)|RULE:(?P<pattern>(?:\\.|[^\\/])*)/(?P<name>(?:\\.|[^\\/])*)/(?P<case>[LU]?))\s*(?:,|$)"
)
_GROUP = re.compile(r"\$(\d)")
_SPECIAL = re.compile(r'[,=+<>#;"\\]')
_EDGES = re.compile(r"^[ \r]+|[ \r]+\Z")

_KEYWORDS = {
    "2.5.4.3": "CN",
    "2.5.4.6": "C",
    "2.5.4.7": "L",
    "2.5.4.8": "ST",
    "2.5.4.9": "STREET",
    "2.5.4.10": "O",
    "2.5.4.11": "OU",
    "0.9.2342.19200300.100.1.1": "UID",
    "0.9.2342.19200300.100.1.25": "DC",
}
_STRINGS = {12, 19, 20, 22, 27, 30}  # of ASN.1, all of which Java reads as UTF-8; others are written in hex
_VERSION = 0xA0


class _Element(NamedTuple):
    """One value of DER."""

    tag: int
    contents: bytes
    whole: bytes
    """With tag and length."""

    @property
    def parts(self) -> list[_Element]:
        parts, rest = [], self.contents
        while rest:
            parts.append(_first(rest))
            rest = rest[len(parts[-1].whole) :]
        return parts


def _first(data: bytes) -> _Element:
    length, start = data[1], 2
    if length & 0x80:
        start += length & 0x7F
        length = int.from_bytes(data[2:start], "big")
    return _Element(data[0], data[start : start + length], data[: start + length])


def distinguished_name(certificate: bytes) -> str:
    """Return the subject of a certificate (DER), which OpenSSL has verified, as Java writes it."""
    fields = _first(certificate).parts[0].parts
    subject = fields[5 if fields[0].tag == _VERSION else 4]
    names = ["+".join(_written(*attribute.parts) for attribute in part.parts) for part in subject.parts]
    return ",".join(reversed(names))


def _written(kind: _Element, value: _Element) -> str:
    number = _dotted(kind.contents)
    keyword = _KEYWORDS.get(number)
    if keyword is None or value.tag not in _STRINGS:
        return f"{keyword or number}=#{value.whole.hex()}"
    return f"{keyword}={_escape(value.contents.decode(errors='replace'))}"


def _dotted(contents: bytes) -> str:
    """Return an object identifier: 2.5.4.3."""
    numbers, number = [], 0
    for byte in contents:
        number = number << 7 | byte & 0x7F
        if not byte & 0x80:
            numbers.append(number)
            number = 0
    first = min(numbers[0] // 40, 2)
    return ".".join(map(str, (first, numbers[0] - 40 * first, *numbers[1:])))


def _escape(value: str) -> str:
    escaped = _SPECIAL.sub(r"\\\g<0>", value).replace("\0", "\\00")
    return _EDGES.sub(lambda edge: re.sub(r"[ \r]", r"\\\g<0>", edge[0]), escaped)


class PrincipalRules:
    """The rules of one server."""

    def __init__(self, text: str) -> None:
        """Raise InvalidSetting if they are not rules."""
        self._rules: list[tuple[re.Pattern[str], str, str]] = []
        position = 0
        while position < len(text):
            match = _RULE.match(text, position)
            if match is None:
                raise InvalidSetting(
                    f"{text[position:]!r} is not a rule",
                    setting=_SETTING,
                    hint="expected RULE:pattern/replacement/[LU], or DEFAULT",
                )
            position = match.end()
            if match["default"]:
                self._rules.append((re.compile("(.*)", re.DOTALL), r"\1", ""))
                continue
            try:
                pattern = re.compile(match["pattern"])
                name = _GROUP.sub(r"\\g<\1>", match["name"].replace("\\", "\\\\"))
                if pattern.groups < max([0, *(int(group) for group in _GROUP.findall(match["name"]))]):
                    raise re.error("the replacement names a group that is not in the pattern")
            except re.error as error:
                raise InvalidSetting(f"{match[0]!r}: {error}", setting=_SETTING) from None
            self._rules.append((pattern, name, match["case"]))

    def apply(self, name: str) -> str | None:
        """Return the user that a distinguished name stands for; None if no rule matches."""
        for pattern, replacement, case in self._rules:
            if pattern.fullmatch(name):
                user = pattern.sub(replacement, name)  # in the whole name, not the match: as Kafka, with replaceAll
                return user.lower() if case == "L" else user.upper() if case == "U" else user
        return None
