"""Who a client certificate stands for: its distinguished name, and `ssl.principal.mapping.rules`, as in Kafka.

    RULE:pattern/replacement/[LU]     if the pattern matches the whole name: the replacement, in lower or upper case
    DEFAULT                           the name as it is

Rules are separated by commas, and the first that matches counts. If none does, the client is not let in. `$1` in a
replacement is the first group of the pattern. The name is written as RFC 2253 has it, the most specific part first:
CN=alice,OU=billing,O=Example.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from klamm.errors import InvalidSetting

__all__ = ["PrincipalRules", "distinguished_name"]

_SETTING = "ssl.principal.mapping.rules"
_RULE = re.compile(
    r"\s*(?:(?P<default>DEFAULT)|RULE:(?P<pattern>(?:\\.|[^\\/])*)/(?P<name>(?:\\.|[^\\/])*)/(?P<case>[LU]?))\s*(?:,|$)"
)
_GROUP = re.compile(r"\$(\d)")

_SHORT = {
    "commonName": "CN",
    "countryName": "C",
    "domainComponent": "DC",
    "localityName": "L",
    "organizationName": "O",
    "organizationalUnitName": "OU",
    "stateOrProvinceName": "ST",
    "streetAddress": "STREET",
    "userId": "UID",
}


def distinguished_name(subject: Sequence[Sequence[tuple[str, str]]]) -> str:
    """Return the subject of a certificate, as `ssl` has it, in the words of RFC 2253."""
    parts = ["+".join(f"{_SHORT.get(name, name)}={_escape(value)}" for name, value in part) for part in subject]
    return ",".join(reversed(parts))


def _escape(value: str) -> str:
    escaped = re.sub(r'([,+"\\<>;])', r"\\\1", value)
    if escaped.startswith(("#", " ")):
        escaped = f"\\{escaped}"
    return f"{escaped[:-1]}\\ " if escaped.endswith(" ") and len(value) > 1 else escaped


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
                    raise re.error("the replacement names a group that the pattern has not")
            except re.error as error:
                raise InvalidSetting(f"{match[0]!r}: {error}", setting=_SETTING) from None
            self._rules.append((pattern, name, match["case"]))

    def apply(self, name: str) -> str | None:
        """Return the user that a distinguished name stands for; None if no rule matches."""
        for pattern, replacement, case in self._rules:
            match = pattern.fullmatch(name)
            if match is not None:
                user = match.expand(replacement).strip()
                return user.lower() if case == "L" else user.upper() if case == "U" else user
        return None
