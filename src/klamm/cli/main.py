"""`klamm`: the program.

Whatever goes wrong is one line on stderr, "klamm: where: what (hint)", and an exit code; never a traceback, unless
KLAMM_TRACEBACK is set. Who stops reading what we print (`klamm tail … | head -1`) ends us, and that is fine. Commands
import what they need when they run, so that `klamm --help` is quick.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Annotated, Any

import typer
import typer.main
from typer.core import TyperGroup

from klamm import __version__
from klamm.api.hints import hint_of
from klamm.cli.codes import DAMAGED, FAILED, FINE, MISUSED
from klamm.cli.hints import OPTIONS, hint_for_command, hint_for_option
from klamm.errors import CorruptBatch, InvalidSetting, KlammError

__all__ = ["COMMANDS", "DAMAGED", "FAILED", "FINE", "MISUSED", "app", "main", "run"]

# In the order of `klamm --help`, which imports none of them: where a command is, and what it does.
COMMANDS: dict[str, tuple[str, str]] = {
    "tail": ("tail:tail", "Print the last records of topics, and follow them."),
    "send": ("send:send", "Append records to a topic."),
    "sql": ("sql:sql", "Query topics with SQL (DuckDB)."),
    "export": ("import_export:export", "Write a topic, or a query's result, to a file."),
    "import": ("import_export:import_", "Append the records of a file to a topic."),
    "copy": ("copy:copy", "Copy topics between directories, servers and Kafka clusters."),
    "serve": ("serve:serve", "Serve a store to Kafka clients, until SIGTERM or SIGINT."),
    "console": ("console:console", "Show a store in a web browser."),
    "work": ("work:work", "Call a Python function with each record, as a service."),
    "info": ("info:info", "Show a store at a glance."),
    "trouble": ("trouble:trouble", "Show what needs attention, and the command that helps."),
    "check": ("maintenance:check", "Verify a store and report damage."),
    "salvage": ("maintenance:salvage", "Print records that were cut off a log."),
    "compact": ("maintenance:compact", "Keep the latest record of each key in compacted topics."),
    "upgrade": ("upgrade:upgrade", "Upgrade a store to the format of this version."),
    "backup": ("maintenance:backup", "Copy a store as of one moment, while it is in use."),
    "who": ("who:who", "Show which processes hold or wait for which lock."),
    "inspect": ("inspect:inspect", "Decode a segment file, batch by batch."),
    "bench": ("bench:bench", "Measure how fast records go in and out, end to end."),
    "life": ("life:life", "Show the board of the game of life."),
    "cheat": ("cheat:cheat", "Show the ten commands people need."),
    "topic": ("topic:app", "Topics: create, list, show, schema, heat, set, purge, delete."),
    "group": ("group:app", "Groups: list, show, reset, delete, export, import."),
    "tx": ("tx:app", "Transactions: list, abort."),
    "dlq": ("dlq:app", "Dead letters: list, redrive, purge."),
    "user": ("user:app", "Users of the Kafka server: add, list, passwd, remove."),
    "acl": ("acl:app", "Rights of users of the Kafka server: add, list, remove, explain."),
    "quota": ("quota:app", "Quotas of clients of the Kafka server: set, list, remove."),
    "pipeline": ("pipeline:app", "Pipelines on Spark: archive, compact, aggregate, …"),
}
_LOOK: dict[str, Any] = {"rich_markup_mode": None, "pretty_exceptions_enable": False}


class _Noun(TyperGroup):
    """Suggest a command for a word that is not one."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        word = args[0]
        if not (ctx.resilient_parsing or word.startswith("-")) and self.get_command(ctx, word) is None:
            path = ctx.command_path
            hint = hint_for_command(word, path, self.list_commands(ctx))
            raise InvalidSetting(f"there is no command {f'{path} {word}'!r}", hint=hint)
        return super().resolve_command(ctx, args)


class _Program(_Noun):
    """The root command: import a command when it is called; handle Ctrl-C and a closed pipe before typer does."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[cmd_name][0].partition(":")
        found = getattr(import_module(f"klamm.cli.{module}"), attribute)
        holder = typer.Typer(**_LOOK)
        if isinstance(found, typer.Typer):
            holder.add_typer(found, cls=_Noun)
        else:
            holder.command(cmd_name)(found)
        return typer.main.get_group(holder).commands[cmd_name]

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, what) for name, (_, what) in COMMANDS.items()])

    def invoke(self, ctx: Any) -> Any:
        try:
            done = super().invoke(ctx)
            sys.stdout.flush()
            return done
        except BrokenPipeError:
            _silence()
            raise typer.Exit(FINE) from None
        except KeyboardInterrupt:
            raise typer.Abort from None


def _silence() -> None:
    """Keep the interpreter from reporting at exit that buffered output cannot be written."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


app = typer.Typer(name="klamm", cls=_Program, context_settings={"help_option_names": ["-h", "--help"]}, **_LOOK)

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
    """Run the command line: the entry point."""
    _open_closed()
    code = run(sys.argv[1:])
    try:
        sys.stdout.flush()
    except OSError:  # else the interpreter would report at exit what `run` has reported, and exit with 120
        _silence()
        code = code or FAILED
    sys.exit(code)


def _open_closed() -> None:
    """Open stdin, stdout and stderr if the caller closed them: else a file of a store would take their place."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(descriptor)
    sys.stdin = sys.stdin or open(0)  # noqa: SIM115
    sys.stdout = sys.stdout or open(1, "w")  # noqa: SIM115
    sys.stderr = sys.stderr or open(2, "w")  # noqa: SIM115


def run(arguments: Sequence[str]) -> int:
    """Run a command line: its exit code. Errors are told on stderr."""
    try:
        code = app(list(arguments), prog_name="klamm", standalone_mode=False)
    except _WrongCall as error:
        if type(error).__name__ == "NoArgsIsHelpError":  # a noun without a verb
            typer.echo(error.format_message(), err=True)
            return MISUSED
        return _complain(*_misuse(error), MISUSED)
    except typer.Abort:
        return _complain("interrupted", None, FAILED)
    except InvalidSetting as error:
        return _complain(error.message, hint_of(error), MISUSED)
    except KlammError as error:
        return _complain(error.message, hint_of(error), DAMAGED if isinstance(error, CorruptBatch) else FAILED)
    except MemoryError:
        return _complain("there is not enough memory", None, FAILED)
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


_PLAINLY = {
    "is not a valid int range": "is not a whole number",
    "is not a valid integer": "is not a whole number",
    "is not a valid float range": "is not a number",
}


def _misuse(error: Any) -> tuple[str, str]:
    """Return what typer has to say, as one line of ours."""
    context: Any = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "klamm"
    command = path.removeprefix("klamm").strip()
    option = getattr(error, "option_name", None) if type(error).__name__ == "NoSuchOption" else None
    if option is None:
        what = str(error.format_message()).strip().rstrip(".")
        what = what[:1].lower() + what[1:]
        for theirs, ours in _PLAINLY.items():
            what = what.replace(theirs, ours)
        hint = f"see {path} --help"
    else:
        what = f"there is no option {option}"
        parameters = context.command.params
        options = {name for parameter in parameters if parameter.param_type_name == "option" for name in parameter.opts}
        arguments = {
            parameter.name: parameter.metavar or parameter.name.upper()
            for parameter in parameters
            if parameter.param_type_name == "argument"
        }
        hint = hint_for_option(option, path, options, arguments)
    if not command and option in ("-s", "--store"):
        hint = "it goes behind the command: klamm topic list --store …"
    if not command and option in OPTIONS and "kafka" in OPTIONS[option][0]:
        hint = "say it behind the command: klamm topic list --store kafka://HOST:PORT"
    return f"{command}: {what}" if command else what, hint
