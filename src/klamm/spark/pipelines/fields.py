"""A part of a record, as a column of Spark's: its key, its value, a header, or a field of the JSON in its value.

    key             the key
    value           the value, as text
    header:id       the last header of that name
    $.user.id       a field of the value, which is JSON: names with dots between them, items of a list as [0],
                    and ['a name'] for one with other characters

A part that is missing, or null, or in JSON that is broken, is null. Numbers are exact decimals, 18 digits before and 10
behind the point, so that a sum is the same in whichever order it is made. Times are of the years 1 to 9999: so one
that was meant as micro- or nanoseconds is none, and moves no watermark.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from klamm.errors import InvalidSetting
from klamm.spark.functions import F

if TYPE_CHECKING:
    from pyspark.sql import Column

__all__ = ["NUMBER", "Field"]

NUMBER = "decimal(28,10)"
_FIRST_MS, _END_MS = -62_135_596_800_000, 253_402_300_800_000  # the years 1 and 10000
_PATH = re.compile(r"\$(\.[A-Za-z_][\w-]*|\[\d+\]|\['[^'\[\]?*]+'\])+")
_EXAMPLES = {
    "key": "key",
    "value": "value",
    "header": "header:id",
    "json": "$.user.id",
}


@dataclass(frozen=True)
class Field:
    """One part of a record."""

    kind: str
    name: str = ""

    @staticmethod
    def of(text: str, what: str, kinds: tuple[str, ...]) -> Field:
        """Return the field that `text` names. Raise InvalidSetting if that is nothing, or none of `kinds`."""
        word = text.strip() if isinstance(text, str) else ""
        if word.startswith("$"):
            if not _PATH.fullmatch(word):
                raise InvalidSetting(
                    f"{what}: {text!r} is not a path into JSON", hint="expected $.name, $.user.id or $.list[0]"
                )
            found = Field("json", word)
        elif word.startswith("header:") and word != "header:":
            found = Field("header", word.removeprefix("header:"))
        else:
            found = Field(word)
        if found.kind not in kinds:
            wanted = " or ".join(_EXAMPLES[kind] for kind in kinds)
            raise InvalidSetting(f"{what}: {text!r} is not a usable part of a record", hint=f"expected {wanted}")
        return found

    def __str__(self) -> str:
        return {"json": self.name, "header": f"header:{self.name}"}.get(self.kind, self.kind)

    def bytes(self) -> Column:
        """Return the field as bytes, out of the columns key, value and headers."""
        if self.kind == "header":
            named = F.filter("headers", lambda each: each["key"] == self.name)
            return F.try_element_at(named, F.lit(-1))["value"]
        return F.col(self.kind) if self.kind in ("key", "value") else self.text().cast("binary")

    def text(self) -> Column:
        if self.kind == "json":
            # Spark's parser is content when the text begins with JSON. Inside of this, it has to be JSON to its end.
            whole = F.concat(F.lit('{"v":'), F.col("value").cast("string"), F.lit("}"))
            return F.get_json_object(whole, f"$.v{self.name[1:]}")
        return self.bytes().cast("string")

    def number(self) -> Column:
        """Return the field as a decimal; null for what is not a number, or has too many digits."""
        return self.text().try_cast(NUMBER)

    def time(self) -> Column:
        """Return the field as a time, from milliseconds since 1970, or text such as 2026-01-31T12:00:00Z; else null."""
        number = self.number()
        milliseconds = F.when(
            (number >= _FIRST_MS) & (number < _END_MS), F.timestamp_millis(F.floor(number).cast("long"))
        )
        dated = F.when(self.text().rlike(r"^\s*\d{4,}-"), self.text())  # of a time alone, Spark would make one of today
        time = F.when(number.isNull(), dated.try_cast("timestamp")).otherwise(milliseconds)
        return F.when(F.unix_millis(time).between(_FIRST_MS, _END_MS - 1), time)
