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
    users, certificate, serve, client, rules, guarded, quotas, watcher = blocks("guide/securing.md", "sh")
    assert '"user": "alice"' in pasted(users, tmp_path)
    pasted(certificate, tmp_path)

    def options(command: str) -> list[str]:
        """Return what is set, with a port that is free."""
        first, *settings = command.replace("\\\n", " ").split(" --set ")
        assert first == "klamm serve events"
        moved = [
            each.strip().replace(":9093", ":0").replace("server.pem", f"{tmp_path}/server.pem") for each in settings
        ]
        return [word for setting in moved for word in ("--set", setting)]

    def send(command: str, *, is_refused: bool = False) -> None:
        address = f"localhost:{server.address.rpartition(':')[2]}"
        command = command.replace("localhost:9093", address)
        if is_refused:
            command = command.replace("kcat -P", "timeout 20 kcat -P").rstrip() + " 2>/dev/null || true\n"
        pasted(command, tmp_path)

    with serving(tmp_path / "events", "--config", "/dev/null", *options(serve)) as server:
        send(client)
        send(client.replace("looking-glass", "wrong"), is_refused=True)
    assert '"allowed": false' in pasted(f"export KLAMM_STORE=events\n{rules}", tmp_path)
    pasted(f"export KLAMM_STORE=events\n{watcher}", tmp_path)
    with serving(tmp_path / "events", "--config", "/dev/null", "--metrics", "0", *options(guarded)) as server:
        port = server.ready()["metrics"].rpartition(":")[2]
        scrape = f"curl -sS --cacert certificate.pem -u prometheus:counting-sheep https://localhost:{port}/metrics"
        if shutil.which("curl") is not None:
            assert "klamm_logins_total" in pasted(scrape, tmp_path)
        send(client.replace("hello", "again"))
        send(client.replace("-t orders", "-t orders-2"), is_refused=True)
    with klamm.open(tmp_path / "events") as store:
        assert list(store.topics) == ["orders"]
        assert [record.value for record in store.consumer("orders", wait=0, start="earliest")] == [b"hello", b"again"]
    assert '"value": 5000000' in pasted("export KLAMM_STORE=events\n" + quotas, tmp_path)
