"""`klamm user`: who may log in to the Kafka server of a store. Works on the directory, with or without a server.

A password comes from a prompt, from stdin, or from a file: never from the command line, which other users of the
machine can see.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from klamm.cli.output import OutputOption, confirm, moment
from klamm.cli.stores import CreateOption, StoreOption, check_directory, core_of, opened
from klamm.errors import InvalidSetting

__all__ = ["app"]

_HINT = "kafka-acls.sh and kafka-configs.sh change those of a cluster; of klamm serve, name its directory"

app = typer.Typer(name="user", help="Users of the Kafka server: add, list, passwd, remove.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="USER", help="The user.", show_default=False)]
PasswordFile = Annotated[
    Path | None,
    typer.Option(
        "--password-file",
        metavar="FILE",
        help="Read the password from the first line of this file. [default: ask, or the first line of stdin]",
    ),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]


@app.command()
def add(
    user: Name,
    store: StoreOption = None,
    password_file: PasswordFile = None,
    mechanism: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="SCRAM-SHA-256 or SCRAM-SHA-512; may be repeated. [default: both]",
        ),
    ] = None,
    create: CreateOption = False,
    *,
    out: OutputOption,
) -> None:
    """Make a user, who can log in at once."""
    from klamm.store.scram import MECHANISMS
    from klamm.store.users import Users, validate_user

    for name in mechanism or ():
        if name not in MECHANISMS:
            raise InvalidSetting(
                f"--mechanism: there is no mechanism {name!r}", hint=f"expected {' or '.join(MECHANISMS)}"
            )
    validate_user(user)
    check_directory(store, "user", _HINT)
    with opened(store, create=create) as events:
        Users(core_of(events).catalog).add(user, _password(password_file), mechanism or MECHANISMS)
    out.report(f"made user {user}", {"user": user})


@app.command("list")
def list_users(store: StoreOption = None, *, out: OutputOption) -> None:
    """List all users, and how they may log in. Nothing of their passwords is shown."""
    from klamm.store.users import Users

    check_directory(store, "user", _HINT)
    with opened(store, looks=True) as events:
        rows = [
            {
                "user": user.name,
                "mechanisms": [name for name, _ in user.mechanisms],
                "changed": moment(user.changed_ms) if out.is_table else user.changed_ms,
            }
            for user in Users(core_of(events).catalog).all()
        ]
    out.print_rows(rows, empty="no users yet: klamm user add makes one")


@app.command()
def passwd(user: Name, store: StoreOption = None, password_file: PasswordFile = None, *, out: OutputOption) -> None:
    """Change a password. Connections that are logged in stay."""
    from klamm.store.users import Users

    check_directory(store, "user", _HINT)
    with opened(store) as events:
        Users(core_of(events).catalog).set_password(user, _password(password_file))
    out.report(f"changed the password of {user}", {"user": user})


@app.command()
def remove(user: Name, store: StoreOption = None, yes: Yes = False, *, out: OutputOption) -> None:
    """Remove a user. Connections that are logged in stay until they have to log in again."""
    from klamm.store.users import Users

    check_directory(store, "user", _HINT)
    with opened(store) as events:
        users = Users(core_of(events).catalog)
        confirm(f"remove user {user}", yes=yes)
        users.remove(user)
    out.report(f"removed user {user}", {"user": user})


def _password(file: Path | None) -> str:
    if file is not None:
        try:
            with file.open(encoding="utf-8") as lines:
                return _line(lines.readline(), f"--password-file {file}")
        except OSError as error:
            raise InvalidSetting(f"--password-file {file}: {error.strerror}") from None
        except UnicodeDecodeError:
            raise InvalidSetting(f"--password-file {file}: is not UTF-8") from None
    if not sys.stdin.isatty():
        return _line(sys.stdin.readline(), "stdin")
    import getpass

    password = getpass.getpass("Password: ")
    if getpass.getpass("Again: ") != password:
        raise InvalidSetting("the two passwords differ", hint="try again; nothing was changed")
    return password


def _line(line: str, where: str) -> str:
    password = line.removesuffix("\n").removesuffix("\r")
    if not password:
        raise InvalidSetting(f"{where}: its first line is empty", hint="expected the password there")
    return password
