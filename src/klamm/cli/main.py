"""`klamm`: the program.

Whatever goes wrong is one line on stderr, "klamm: where: what (hint)", and an exit code; never a traceback, unless
KLAMM_TRACEBACK is set. Commands import what they need when they run, so that `klamm --help` is quick.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from klamm import __version__
from klamm.cli import dlq, group, topic
from klamm.cli.bench import bench
from klamm.cli.cheat import cheat
from klamm.cli.exchange import export, import_
from klamm.cli.inspect import inspect
from klamm.cli.send import send
from klamm.cli.serve import serve
from klamm.cli.sql import sql
from klamm.cli.tail import tail
from klamm.cli.upkeep import backup, check, compact
from klamm.errors import CorruptBatch, InvalidSetting, KlammError

__all__ = ["DAMAGED", "FAILED", "FINE", "MISUSED", "main", "run"]

FINE, FAILED, MISUSED, DAMAGED = range(4)

app = typer.Typer(
    name="klamm",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
_COMMANDS: dict[str, Any] = {  # in the order of `klamm --help`
    "tail": tail,
    "send": send,
    "sql": sql,
    "export": export,
    "import": import_,
    "serve": serve,
    "check": check,
    "compact": compact,
    "backup": backup,
    "inspect": inspect,
    "bench": bench,
    "cheat": cheat,
}
for _name, _command in _COMMANDS.items():
    app.command(_name)(_command)
for _noun in (topic, group, dlq):
    app.add_typer(_noun.app)

# What typer raises for a wrong call: whatever its own BadParameter is a kind of.
_WrongCall: Any = next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException")


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"klamm {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def klamm(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", help="Show the version.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """Klamm: a durable, replayable event log in a directory."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help(), err=True)
        raise typer.Exit(MISUSED)


def main() -> None:
    """The entry point."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Run a command line: its exit code. Errors are told on stderr."""
    try:
        code = app(list(arguments), prog_name="klamm", standalone_mode=False)
    except _WrongCall as error:
        return _complain(*_misuse(error), MISUSED)
    except typer.Abort:
        return _complain("interrupted", None, FAILED)
    except InvalidSetting as error:
        return _complain(error.message, error.hint, MISUSED)
    except CorruptBatch as error:
        return _complain(error.message, error.hint, DAMAGED)
    except KlammError as error:
        return _complain(error.message, error.hint, FAILED)
    except OSError as error:
        where = f"{error.filename}: " if error.filename is not None else ""
        return _complain(f"{where}{error.strerror or error}", None, FAILED)
    except Exception as error:
        if os.environ.get("KLAMM_TRACEBACK"):
            raise
        what = f"{type(error).__name__}: {error}"
        return _complain(what, "this should not have happened; KLAMM_TRACEBACK=1 shows where it did", FAILED)
    return code if isinstance(code, int) else FINE


def _complain(what: str, hint: str | None, code: int) -> int:
    line = f"klamm: {what}" + (f" ({hint})" if hint else "")
    typer.echo(" ".join(line.split()), err=True)
    return code


def _misuse(error: Any) -> tuple[str, str | None]:
    """What typer has to say, as one line of ours."""
    what = str(error.format_message()).strip().rstrip(".")
    what = what[:1].lower() + what[1:]
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "klamm"
    command = path.removeprefix("klamm").strip()
    knows_better = "did you mean" in what.lower() or "possible options" in what.lower()
    hint = None if knows_better else f"see {path} --help"
    return f"{command}: {what}" if command else what, hint
