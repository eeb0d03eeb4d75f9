"""`klamm user`: users of a store, with and without a server; the page of the guide."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import klamm
from klamm.store.users import Users
from tests.cli.conftest import Cli
from tests.cli.test_guide import blocks, pasted
from tests.serving import serving


def fits(home: Path, user: str, password: str) -> bool:
    with klamm.open(home, create=False) as store:
        credentials = Users(store._acquired().catalog).find(user).values()
        return bool(credentials) and all(each.fits(password) for each in credentials)


def test_users_are_added_listed_changed_and_removed(cli: Cli, home: Path) -> None:
    assert cli("user", "add", "alice", "--create", stdin=b"secret\nmore\n").rows == [{"user": "alice"}]
    cli("user", "add", "bob", "--mechanism", "SCRAM-SHA-512", stdin=b"secret\r\n")
    assert [(row["user"], row["mechanisms"]) for row in cli("user", "list").rows] == [
        ("alice", ["SCRAM-SHA-256", "SCRAM-SHA-512"]),
        ("bob", ["SCRAM-SHA-512"]),
    ]
    assert fits(home, "alice", "secret") and fits(home, "bob", "secret")
    cli("user", "passwd", "alice", stdin="größer\n".encode())
    assert fits(home, "alice", "größer") and not fits(home, "alice", "secret")
    cli("user", "remove", "alice", code=2)
    cli("user", "remove", "alice", "--yes")
    assert [row["user"] for row in cli("user", "list").rows] == ["bob"]


def test_a_password_may_come_from_a_file(cli: Cli, home: Path, tmp_path: Path) -> None:
    (tmp_path / "password").write_text("in a file\n")
    cli("user", "add", "alice", "--create", "--password-file", tmp_path / "password")
    assert fits(home, "alice", "in a file")
    assert "No such file" in cli("user", "add", "bob", "--password-file", tmp_path / "missing", code=2).err
    (tmp_path / "password").write_bytes(b"\xff\n")
    assert "is not UTF-8" in cli("user", "add", "bob", "--password-file", tmp_path / "password", code=2).err


def test_what_does_not_fit_is_refused_and_the_password_not_shown(cli: Cli, home: Path) -> None:
    cli("user", "add", "alice", "--create", stdin=b"secret\n")
    said = [
        cli("user", "add", "alice", stdin=b"topsecret\n", code=2),
        cli("user", "add", "", stdin=b"topsecret\n", code=2),
        cli("user", "add", "bob", "--mechanism", "PLAIN", stdin=b"topsecret\n", code=2),
        cli("user", "passwd", "bob", stdin=b"topsecret\n", code=2),
        cli("user", "add", "bob", stdin=b"topsecret\0\n", code=2),
        cli("user", "add", "bob", stdin=b"\n", code=2),
        cli("user", "remove", "bob", "--yes", code=2),
    ]
    assert not any("topsecret" in each.err or b"topsecret" in each.out for each in said)
    assert [row["user"] for row in cli("user", "list").rows] == ["alice"]


def test_the_page_on_security_works_as_it_is(tmp_path: Path) -> None:
    if shutil.which("kcat") is None:
        pytest.skip("there is no kcat on this machine: see `make tools`")
    users, certificate, serve, client = blocks("guide/securing.md", "sh")
    assert '"user": "alice"' in pasted(users, tmp_path)
    pasted(certificate, tmp_path)
    command, keystore, listeners = serve.split(" --set ")
    assert (command, keystore) == ("klamm serve events", "ssl.keystore.location=server.pem")
    settings = (keystore.replace("server.pem", f"{tmp_path}/server.pem"), listeners.strip().replace(":9093", ":0"))
    options = [word for setting in settings for word in ("--set", setting)]
    with serving(tmp_path / "events", "--config", "/dev/null", *options) as server:
        address = f"localhost:{server.address.rpartition(':')[2]}"
        pasted(client.replace("localhost:9093", address), tmp_path)
        refused = client.replace("localhost:9093", address).replace("looking-glass", "wrong")
        pasted(refused.replace("kcat -P", "timeout 20 kcat -P").rstrip() + " 2>/dev/null || true\n", tmp_path)
    with klamm.open(tmp_path / "events") as store:
        assert [record.value for record in store.consumer("orders", wait=0, start="earliest")] == [b"hello"]
