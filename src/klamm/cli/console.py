"""`klamm console`: a store in a web browser, until a signal comes.

stdout   one line, once visitors can come: klamm: console of events/ at http://127.0.0.1:8080/
signals  SIGTERM, SIGINT: end at once, exit 0
stdin    with --until-eof: when it ends, so does the console, as by SIGTERM
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path
from typing import Annotated

import typer

from klamm.cli.stores import PathArgument, check_directory, found_path, opened
from klamm.errors import InvalidSetting

__all__ = ["console"]


def console(
    path: PathArgument = None,
    port: Annotated[int, typer.Option(metavar="PORT", help="Where it listens; 0: any free port.", min=0)] = 8080,
    host: Annotated[
        str, typer.Option(metavar="ADDRESS", help="On which address. Others than loopback need a token, or users.")
    ] = "127.0.0.1",
    allow_changes: Annotated[
        bool, typer.Option("--allow-changes", help="Let visitors change the store; else they only look.")
    ] = False,
    token_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="A file with the token that visitors give. [default: $KLAMM_CONSOLE_TOKEN]"),
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="A name by which visitors reach it, through a proxy; may be repeated."),
    ] = None,
    mask: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FIELD", help="A field of JSON that is not shown: email, or $.user.email; may be repeated."
        ),
    ] = None,
    record: Annotated[
        bool, typer.Option("--record", help="Write the history of groups into a topic of the store: __klamm_history.")
    ] = False,
    server: Annotated[
        str,
        typer.Option(
            metavar="HOST:PORT", help="The metrics port of klamm serve, whose connections are shown; or its URL."
        ),
    ] = "",
    until_eof: Annotated[
        bool, typer.Option("--until-eof", help="End when standard input ends, too: with the program that started it.")
    ] = False,
) -> None:
    """Show a store in a web browser. Reads only, unless --allow-changes; until SIGTERM or SIGINT."""
    from klamm.console.options import SERVER_TOKEN, ConsoleOptions, is_loopback
    from klamm.console.passwords import has_users
    from klamm.console.server import run_console

    check_directory(
        path, "console", "klamm copy SOURCE DIRECTORY --follow keeps one up to date, and the console shows it"
    )
    token = _token(token_file)
    shown = found_path(path)
    with opened(path, read_only=not (allow_changes or record)) as events:
        users = token is None and not is_loopback(host) and has_users(events)
        token_of_server = os.environ.pop(SERVER_TOKEN, "")  # what the console starts needs none
        options = ConsoleOptions(
            host,
            port,
            allow_changes,
            token,
            tuple(allow_host or ()),
            tuple(mask or ()),
            record,
            _url(server),
            has_users=users,
            server_token=token_of_server,
        )
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # until uvicorn takes both
        if until_eof:
            threading.Thread(target=_end_at_eof, name="klamm-console-eof", daemon=True).start()
        try:
            run_console(events, shown, options, lambda address: _say(shown, address))
        except KeyboardInterrupt:
            pass


def _url(server: str) -> str:
    return server if not server or "://" in server else f"http://{server}"


def _end_at_eof() -> None:
    """Wait until no process holds the other end of standard input."""
    while os.read(0, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def _token(file: Path | None) -> str | None:
    from klamm.console.options import VISITOR_TOKEN

    if file is None:
        return os.environ.pop(VISITOR_TOKEN, "") or None  # what the console starts needs none
    try:
        token = file.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidSetting(f"--token-file {file}: cannot be read: {error}") from None
    if not token:
        raise InvalidSetting(f"--token-file {file}: is empty", hint="write the token into it")
    return token


def _say(path: str, address: str) -> None:
    shown = path if path.endswith(os.sep) else f"{path}{os.sep}"
    try:
        sys.stdout.write(f"klamm: console of {shown} at {address}\n")
        sys.stdout.flush()
    except OSError:  # its reader is gone
        pass
