"""`klamm console`, when it does not start; when it does: tests/console/test_server.py."""

from __future__ import annotations

import socket
from pathlib import Path

import klamm
from tests.cli.conftest import Cli


def test_a_port_that_is_taken_is_named(cli: Cli, home: Path) -> None:
    klamm.open(home).close()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        told = cli("console", "--port", port, code=2).err
        assert f"cannot listen at 127.0.0.1:{port}: Address already in use (say another --port)" in told


def test_other_hosts_need_a_token(cli: Cli, home: Path, tmp_path: Path) -> None:
    klamm.open(home).close()
    assert "needs a token" in cli("console", "--host", "0.0.0.0", code=2).err
    (tmp_path / "token").write_text("\n")
    assert "is empty" in cli("console", "--token-file", tmp_path / "token", code=2).err
    assert "cannot be read" in cli("console", "--token-file", tmp_path / "nothing", code=2).err
    assert "no such directory" in cli("console", tmp_path / "nowhere", code=1).err
