"""Databases of users, for tests: a SQLite file, and a schema of a PostgreSQL server that runs as long as the tests do.

PostgreSQL refuses to run as root; then the server runs as nobody. It listens on a socket in its own directory only.
"""

from __future__ import annotations

import contextlib
import glob
import itertools
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import pytest

from tests.procs import until


class Database(Protocol):
    """Somewhere to keep results. Any process may connect."""

    kind: str

    def connect(self) -> Any:
        """A connection without an open transaction, that opens none by itself."""

    def transaction(self, connection: Any) -> contextlib.AbstractContextManager[None]: ...


def run(connection: Any, statement: str, values: tuple[Any, ...] = ()) -> Any:
    """A statement with ? for its values, at either database."""
    if not isinstance(connection, sqlite3.Connection):
        statement = statement.replace("?", "%s")
    return connection.execute(statement, values)


def all_of(database: Database, statement: str) -> list[Any]:
    """The rows of a query, as a stranger sees them."""
    with contextlib.closing(database.connect()) as connection:
        return list(run(connection, statement).fetchall())


class Sqlite:
    kind = "sqlite"

    def __init__(self, path: Path) -> None:
        self._path = path

    def connect(self) -> Any:
        connection = sqlite3.connect(self._path, isolation_level=None, timeout=30)
        connection.execute("PRAGMA synchronous = OFF")  # processes die here, not machines
        return connection

    @contextlib.contextmanager
    def transaction(self, connection: Any) -> Iterator[None]:
        connection.execute("BEGIN IMMEDIATE")
        with connection:
            yield


class Postgres:
    kind = "postgres"

    def __init__(self, conninfo: str) -> None:
        self._conninfo = conninfo

    def connect(self, **options: Any) -> Any:
        import psycopg

        return psycopg.connect(self._conninfo, autocommit=True, **options)

    @contextlib.contextmanager
    def transaction(self, connection: Any) -> Iterator[None]:
        with connection.transaction():
            yield


class Server:
    """A PostgreSQL server. Each `fresh()` is a schema of its own."""

    def __init__(self, binaries: str, directory: str) -> None:
        self._directory = directory
        self._numbers = itertools.count()
        as_somebody: list[str] = []
        if os.geteuid() == 0:
            as_somebody = ["setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups", "--pdeathsig=QUIT"]
            shutil.chown(directory, "nobody", "nogroup")
        data = f"{directory}/data"
        initdb = f"{binaries}/initdb -D {data} -U tests --auth=trust --no-sync --locale=C -E UTF8 --no-instructions"
        made = subprocess.run([*as_somebody, *initdb.split()], capture_output=True, text=True, cwd=directory)
        assert made.returncode == 0, made.stderr
        settings = f"-c listen_addresses= -c unix_socket_directories={directory} -c fsync=off -c max_connections=50"
        self._log = open(f"{directory}/log", "wb")  # noqa: SIM115  # closed by stop
        self._process = subprocess.Popen(
            [*as_somebody, f"{binaries}/postgres", "-D", data, *settings.split()],
            stdout=self._log,
            stderr=self._log,
            cwd=directory,
        )
        self._admin = until(self._connected, "the server answers")

    def _connected(self) -> Any:
        import psycopg

        assert self._process.poll() is None, Path(f"{self._directory}/log").read_text()
        try:
            return psycopg.connect(self._conninfo, autocommit=True)
        except psycopg.OperationalError:
            return None

    @property
    def _conninfo(self) -> str:
        return f"host={self._directory} user=tests dbname=postgres"

    def fresh(self) -> Postgres:
        schema = f"s{os.getpid()}_{next(self._numbers)}"
        self._admin.execute(f"CREATE SCHEMA {schema}")
        return Postgres(f"{self._conninfo} options='-c search_path={schema}'")

    def stop(self) -> None:
        self._admin.close()
        self._process.send_signal(signal.SIGQUIT)
        self._process.wait(30)
        self._log.close()


def _binaries() -> str | None:
    found = shutil.which("initdb")
    places = [os.path.dirname(found)] if found else []
    places += sorted(glob.glob("/usr/lib/postgresql/*/bin"), key=lambda path: float(path.split("/")[4]))  # Debian's
    usable = [place for place in places if os.access(f"{place}/postgres", os.X_OK)]
    return usable[-1] if usable else None


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Server]:
    if sys.platform == "win32":
        pytest.skip("Windows: the server is started as on POSIX")
    binaries = _binaries()
    if binaries is None:
        pytest.skip("there is no PostgreSQL server on this machine: see `make tools`")
    with tempfile.TemporaryDirectory(prefix="pg-", ignore_cleanup_errors=True) as directory:
        server = Server(binaries, directory)
        try:
            yield server
        finally:
            server.stop()


@pytest.fixture(params=["sqlite", "postgres"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Database:
    """One of each kind, empty."""
    if request.param == "sqlite":
        return Sqlite(tmp_path / "results.db")
    server: Server = request.getfixturevalue("postgres_server")
    return server.fresh()


__all__ = ["Database", "Postgres", "Server", "Sqlite", "all_of", "database", "postgres_server", "run"]
