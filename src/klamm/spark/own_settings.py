"""Settings that a user made outside of the program, as the JVM of a session on this machine will read them.

    $SPARK_CONF_DIR/spark-defaults.conf     else $SPARK_HOME/conf/spark-defaults.conf
    $PYSPARK_SUBMIT_ARGS                    --conf NAME=VALUE, --properties-file FILE, --master, --name

What the variable says goes before the file. The file is one of Java's properties: `name value`, `name=value` or
`name: value` in a line, # or ! before a comment, a backslash before the end of a line that goes on.
"""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path

__all__ = ["find", "parse"]

_PAIR = re.compile(r"((?:\\.|[^\\\s=:])*)\s*[=:]?\s*(.*)", re.DOTALL)
_ESCAPE = re.compile(r"\\(?:u([0-9A-Fa-f]{4})|(.))", re.DOTALL)
_ESCAPED = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_OPTIONS = {"--master": "spark.master", "--name": "spark.app.name"}


def find(spark_home: str) -> dict[str, str]:
    """Return the user's settings; none if there are none, or the file cannot be read: Spark will say so."""
    given, file = _of_arguments(os.environ.get("PYSPARK_SUBMIT_ARGS", ""))
    directory = os.environ.get("SPARK_CONF_DIR") or f"{spark_home}/conf"
    try:
        of_file = parse(Path(file or f"{directory}/spark-defaults.conf").read_text(errors="replace"))
    except OSError:
        of_file = {}
    return {name: value for name, value in {**of_file, **given}.items() if name.startswith("spark.")}


def parse(text: str) -> dict[str, str]:
    """Return the properties of a file."""
    found, lines = {}, iter(re.split(r"\r\n|\r|\n", text))
    for line in lines:
        whole = line.lstrip()
        if not whole or whole[0] in "#!":
            continue
        while (len(whole) - len(whole.rstrip("\\"))) % 2:
            whole = whole[:-1] + next(lines, "").lstrip()
        pair = _PAIR.fullmatch(whole)
        assert pair is not None, "it fits every text"
        found[_unescape(pair[1])] = _unescape(pair[2]).strip()
    return found


def _unescape(text: str) -> str:
    return _ESCAPE.sub(lambda part: chr(int(part[1], 16)) if part[1] else _ESCAPED.get(part[2], part[2]), text)


def _of_arguments(arguments: str) -> tuple[dict[str, str], str | None]:
    """Return the settings among options of spark-submit, and the file that they name."""
    given: dict[str, str] = {}
    file: str | None = None
    try:
        words = iter(shlex.split(arguments))
    except ValueError:  # Spark will say so
        return {}, None
    for word in words:
        option, equals, value = word.partition("=")
        if option not in ("--conf", "-c", "--properties-file", *_OPTIONS):
            continue
        if not equals:
            value = next(words, "")
        if option == "--properties-file":
            file = value
        elif option in _OPTIONS:
            given[_OPTIONS[option]] = value
        else:
            name, _, setting = value.partition("=")
            given[name] = setting
    return given, file
