"""`klamm serve --console`: a console that starts and ends with the server."""

from __future__ import annotations

import json
import os
import signal
import socket
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.parse import urlencode
from urllib.request import HTTPCookieProcessor, Request, build_opener, urlopen

import pytest
from confluent_kafka import Producer

import klamm
from klamm.cli import history_thread
from klamm.cli.main import run
from klamm.console.history import read_history
from klamm.errors import InvalidSetting
from klamm.kafka.settings import STANDARD_AUTHORIZER, ServerSettings
from klamm.store.users import Users
from tests.kafka.authorities import Authority
from tests.procs import children, until
from tests.serving import serve_here, serving


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "events"


def is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"


def console_pid(log: str) -> int:
    (started,) = [json.loads(line) for line in log.splitlines() if '"event": "console"' in line]
    return int(started["pid"])


def test_the_console_starts_with_the_server_masks_fields_and_ends_with_it(tmp_path: Path) -> None:
    path = tmp_path / "events"
    with klamm.open(path) as store:
        store.topics.create("orders")
        store.append("orders", b'{"pin": "s3cr3t", "n": 1}', acks=1)
    with serving(path, "--console", "0", "--mask", "pin", "--log-format", "json") as server:
        address = server.ready()["console"]
        body = urlopen(f"{address}api/topics/orders", timeout=30).read().decode()
        assert "s3cr3t" not in body and "(masked)" in body
        pid = console_pid(server.stderr)
        assert not is_gone(pid)
        assert server.stop() == 0
        assert is_gone(pid) and "Traceback" not in server.stderr


def test_a_server_without_a_console_records_the_history_of_groups(tmp_path: Path) -> None:
    path = tmp_path / "events"
    with klamm.open(path) as store:
        store.topics.create("orders")
        store.groups.reset("billing", "orders", to="earliest")

    def serve() -> None:
        history_thread.START_AFTER_S = 0.05
        serve_here(path, 0, tmp_path / "log")

    with children() as start, klamm.open(path) as store:
        server = start(serve)
        until(lambda: read_history(store, "billing", 0)[0] or not server.running, "the server records")
        server.signal(signal.SIGTERM)
        assert server.ended() == 0, (tmp_path / "log").read_text()
        assert read_history(store, "billing", 0)[0], (tmp_path / "log").read_text()


def test_the_console_ends_when_the_server_is_killed_and_the_server_goes_on_without_it(tmp_path: Path) -> None:
    with serving(tmp_path / "events", "--console", "0", "--log-format", "json") as server:
        address = server.ready()["console"]
        pid = console_pid(server.stderr)
        os.kill(pid, signal.SIGKILL)
        until(lambda: "goes on without it" in server.stderr, "the server logs that its console is gone")
        with socket.create_connection(("127.0.0.1", server.port), 10):
            pass
        try:
            urlopen(address, timeout=10)
            raise AssertionError("the console is still there")
        except URLError:
            pass
        server.kill()
        server.begin()
        server.ready()
        pid = json.loads([line for line in server.stderr.splitlines() if '"event": "console"' in line][-1])["pid"]
        server.kill()
        try:
            until(lambda: is_gone(pid), "the console has ended with the server")
        finally:
            if not is_gone(pid):
                os.kill(pid, signal.SIGKILL)  # nothing else would end it


@pytest.mark.parametrize("protocol", ["SASL_PLAINTEXT", "SASL_SSL"])
def test_the_console_shows_recent_requests_without_passwords_and_records(tmp_path: Path, protocol: str) -> None:
    """A real client logs in by SASL/PLAIN and produces: its requests are decoded, what it sent is not there.

    The metrics port, where the console gets them, has the security of the listener: it lets in the console that the
    server has started, and no one without a password.
    """
    authority = Authority(tmp_path)
    authority.server()
    path = tmp_path / "events"
    with klamm.open(path) as store:
        store.topics.create("orders")
        Users(store._acquired().catalog).add("ada", "s3cr3t-password")
    options = ("--console", "0", "--metrics", "0", "--set", "request.log.size=30")
    sasl = ("--set", f"listeners={protocol}://127.0.0.1:0", "--set", "sasl.enabled.mechanisms=PLAIN")
    tls = ("--set", f"ssl.keystore.location={tmp_path / 'server.pem'}")
    with serving(path, *options, *sasl, *tls) as server:
        ready = server.ready()
        login = {"security.protocol": protocol, "sasl.mechanism": "PLAIN", "ssl.ca.location": str(authority.path)}
        login |= {"sasl.username": "ada", "sasl.password": "s3cr3t-password"}
        address = ready["address"].rpartition("//")[2]
        producer = Producer({"bootstrap.servers": address, "client.id": "the-client", **login})
        producer.produce("orders", b"s3cr3t-value", key=b"s3cr3t-key", headers={"h": b"s3cr3t-header"})
        assert producer.flush(30) == 0
        console, _, token = ready["console"].partition("login?token=")
        look = build_opener(HTTPCookieProcessor()).open
        assert token and token not in server.stderr
        with pytest.raises(HTTPError, match="401"):
            look(f"{console}api/connections", timeout=30)
        look(Request(f"{console}login?token={token}"), timeout=30)
        shown = json.load(look(f"{console}api/connections", timeout=30))
        assert {row["principal"] for row in shown["connections"]} >= {"User:ada"}
        requests = []
        for row in shown["connections"]:
            query = urlencode({"peer": row["peer"]})
            requests += json.load(look(f"{console}api/connections?{query}", timeout=30))["requests"]
        apis = {row["api"] for row in requests}
        assert apis >= {"ApiVersions", "SaslHandshake", "SaslAuthenticate", "Produce"}
        (produced,) = [row for row in requests if row["api"] == "Produce"]
        assert produced["client_id"] == "the-client"
        assert "orders" in json.dumps(produced["request"]) and " bytes>" in json.dumps(produced["request"])
        assert "s3cr3t" not in json.dumps(requests) and "s3cr3t" not in json.dumps(shown)
        page = look(f"{console}connections", timeout=30).read().decode()
        assert "the-client" in page and "s3cr3t" not in page
        metrics = f"http{'s' if protocol.endswith('SSL') else ''}://localhost:{ready['metrics'].rpartition(':')[2]}"
        for headers in ({}, {"Authorization": "Bearer "}, {"Authorization": f"Bearer {'A' * 43}"}):
            with pytest.raises(HTTPError, match="401"):
                urlopen(Request(f"{metrics}/connections", headers=headers), timeout=30, context=authority.context())
        del producer


@pytest.mark.parametrize("given", ["", "a token of one's own"])
def test_the_console_of_a_guarded_server_asks_for_a_token(path: Path, given: str) -> None:
    """Who may not do everything by the Kafka server may not by its console, which opens the directory as its owner."""
    with klamm.open(path) as store:
        store.topics.create("secret-plans")
    guard = ("--console", "0", "--log-format", "json", "--set", f"authorizer.class.name={STANDARD_AUTHORIZER}")
    environment = {"KLAMM_CONSOLE_TOKEN": given}
    with serving(path, *guard, environment=environment) as server:
        console, _, token = server.ready()["console"].partition("login?token=")
        assert bool(token) != bool(given), "what was given is not printed"
        token = token or given
        for headers in ({}, {"Authorization": "Bearer 0123456789ab"}):
            with pytest.raises(HTTPError, match="401"):
                urlopen(Request(f"{console}api/overview", headers=headers), timeout=30)
        assert "Log in" in urlopen(f"{console}login?token=0123456789ab", timeout=30).read().decode()
        right = Request(f"{console}api/overview", headers={"Authorization": f"Bearer {token}"})
        assert "secret-plans" in urlopen(right, timeout=30).read().decode()
        until(lambda: "127.0.0.1: login failed (1 since the start)" in server.stderr, "it is logged")
        assert server.stop() == 0
        assert token not in server.stderr
    with serving(path, "--console", "0", environment={"KLAMM_CONSOLE_TOKEN": ""}) as server:
        assert "token" not in server.stdout, "a server that lets everyone do everything has nothing to guard"


def test_requests_are_kept_only_when_asked_for_and_only_for_this_machine(path: Path) -> None:
    with serving(path, "--metrics", "0") as server, pytest.raises(HTTPError, match="404"):
        urlopen(f"http://{server.ready()['metrics']}/connections", timeout=30)
    for metrics, host in ((-1, "127.0.0.1"), (0, "0.0.0.0"), (0, "example.org")):
        with pytest.raises(InvalidSetting, match="this machine alone"):
            ServerSettings.of({"request.log.size": 5, "metrics": metrics, "host": host})


def test_what_keeps_it_from_starting_is_one_line(tmp_path: Path, capsys: object) -> None:
    from tests.cli.test_serve import refused

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        told = refused("serve", tmp_path / "events", "--kafka", "0", "--console", str(port), code=2)
        assert f"--console: cannot listen at 127.0.0.1:{port}" in told
    assert run(["serve", str(tmp_path / "events"), "--console", "x"]) == 2
    assert run(["serve", str(tmp_path / "events"), "--mask", "pin"]) == 2
    assert run(["serve", str(tmp_path / "events"), "--console", "0", "--mask", "$"]) == 2
