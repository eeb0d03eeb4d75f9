"""A session of Spark for one command: quiet, with the settings of --master and --conf, and stopped at its end."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import typer

from klamm.cli.output import is_terminal
from klamm.errors import InvalidSetting

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["spark_session"]

_QUIET = {"spark.ui.showConsoleProgress": "false", "spark.ui.enabled": "false", "spark.log.level": "ERROR"}
"""Unless the user's settings outside of the program say something else."""


@contextmanager
def spark_session(master: str | None, conf: list[str] | None) -> Iterator[SparkSession]:
    """Start a session for a `with` block. `conf`: NAME=VALUE."""
    given = {}
    for pair in conf or ():
        name, equals, value = pair.partition("=")
        if not equals or not name.startswith("spark."):
            raise InvalidSetting(f"--conf {pair}: invalid", hint="expected --conf spark.executor.memory=2g")
        given[name] = value
    import klamm.spark
    from klamm.spark.session import find_own

    own = find_own()
    settings = {name: value for name, value in _QUIET.items() if name not in own} | given
    if is_terminal():
        typer.echo("klamm: starting Spark …", err=True)
    with _captured_stderr():
        spark = klamm.spark.session(master=master, **settings)
    try:
        yield spark
    finally:
        spark.stop()


@contextmanager
def _captured_stderr() -> Iterator[None]:
    """Redirect to a file what Spark's processes print, from their start on; show it if they cannot start."""
    kept = os.dup(2)
    with tempfile.TemporaryFile() as captured:
        os.dup2(captured.fileno(), 2)
        try:
            yield
        except BaseException:
            captured.seek(max(0, captured.tell() - 4000))
            os.write(kept, captured.read())
            raise
        finally:
            os.dup2(kept, 2)
            os.close(kept)
