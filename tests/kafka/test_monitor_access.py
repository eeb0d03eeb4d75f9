"""The metrics port has the security of a listener: who may read what names topics and groups."""

from __future__ import annotations

import asyncio
import base64
import http.client
import json
import socket
import ssl
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import klamm
from klamm.kafka import monitor
from klamm.kafka.service import Service
from klamm.kafka.settings import STANDARD_AUTHORIZER
from klamm.store.acl import CLUSTER_NAME, Acl, Operation, PatternType, Permission, ResourceType
from klamm.store.acls import Acls
from klamm.store.users import Users
from tests.kafka.authorities import Authority
from tests.kafka.test_metrics import with_service
from tests.kafka.tokens import Issuer, settings_of
from tests.procs import until

PATHS = ("/metrics", "/status", "/connections", "/")
AUTHORIZED = {"authorizer.class.name": STANDARD_AUTHORIZER}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with klamm.open(tmp_path / "events") as store:
        store.topics.create("secret-plans")
        Users(store._acquired().catalog).add("alice", "wonder:land")
    return tmp_path / "events"


def secured(authority: Authority, listeners: str, **more: Any) -> dict[str, Any]:
    """Settings of a server with these listeners; `kafka` is not used then."""
    where = ",".join(f"{name}://127.0.0.1:0" for name in listeners.split(","))
    keystore = str(authority.path.with_name("server.pem"))
    return {
        "listeners": where,
        "ssl.keystore.location": keystore,
        "ssl.truststore.location": str(authority.path),
        "connection.failed.authentication.delay.ms": 0,
        **more,
    }


def basic(user: str, password: str) -> dict[str, str]:
    return {"Authorization": "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()}


Answer = tuple[int, str]


def get(address: str, target: str, headers: dict[str, str], context: ssl.SSLContext | None = None) -> Answer:
    port = int(address.rpartition(":")[2])
    connection = (
        http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        if context is None
        else http.client.HTTPSConnection("localhost", port, timeout=30, context=context)
    )
    try:
        connection.request("GET", target, headers=headers)
        response = connection.getresponse()
        assert response.status != 401 or response.headers["WWW-Authenticate"].split()[0] in ("Basic", "Bearer")
        return response.status, response.read().decode()
    finally:
        connection.close()


def asked(path: Path, settings: dict[str, Any], questions: Callable[[str], Any], *, failures: int = 0) -> Any:
    """Return what a function finds out that asks the port of a server; so many logins fail."""

    async def act(service: Service) -> Any:
        result = await asyncio.to_thread(questions, service.metrics)
        logins = service.server.broker.metrics.logins
        await asyncio.to_thread(
            until, lambda: sum(n for (_, how), n in logins.items() if how == "failure") == failures, "logins counted"
        )
        return result

    return with_service(path, act, **settings)


def test_a_port_beside_a_listener_with_logins_asks_for_a_user(path: Path, authority: Authority) -> None:
    """MON2"""
    context = authority.context()

    def questions(address: str) -> None:
        assert get(address, "/healthz", {}, context) == (200, "ready\n")
        wrong = [
            {},
            basic("alice", "x"),
            basic("bob", "wonder:land"),
            {"Authorization": "Basic ?"},
            {"Authorization": "x"},
        ]
        for target in PATHS:
            for headers in wrong:
                status, text = get(address, target, headers, context)
                assert status == 401 and "secret" not in text
        status, text = get(address, "/metrics", basic("alice", "wonder:land"), context)
        assert status == 200 and "secret-plans" in text
        with pytest.raises((OSError, http.client.HTTPException)):
            get(address, "/healthz", {})

    asked(path, secured(authority, "SASL_SSL,PLAINTEXT"), questions, failures=3 * len(PATHS))


@pytest.mark.parametrize("listeners", ["PLAINTEXT,SASL_SSL", "SASL_PLAINTEXT,SASL_SSL", "SSL,SASL_SSL"])
def test_the_port_has_the_security_of_the_strictest_listener(path: Path, authority: Authority, listeners: str) -> None:
    """MON2: a listener for this machine alone, which comes first, opens the port to no one else."""
    context = authority.context()

    def questions(address: str) -> None:
        assert get(address, "/metrics", {}, context)[0] == 401
        assert get(address, "/metrics", basic("alice", "wonder:land"), context)[0] == 200

    asked(path, secured(authority, listeners), questions)


def test_a_port_that_others_can_read_is_warned_of(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    sasl = {"listeners": "SASL_PLAINTEXT://127.0.0.1:0"}
    for settings, is_warned in (
        ({"host": "127.0.0.1"}, False),
        ({"host": "127.0.0.1", **sasl}, False),
        ({"host": "0.0.0.0", **sasl, "metrics.security.protocol": "PLAINTEXT"}, True),
        ({"host": "0.0.0.0", "listeners": "PLAINTEXT://127.0.0.1:0"}, True),
    ):
        caplog.clear()
        asked(path, settings, lambda address: None)
        assert ("beyond this machine: there is no authentication" in caplog.text) is is_warned, settings
    caplog.clear()
    asked(path, {"host": "0.0.0.0", **sasl}, lambda address: None)
    assert "beyond this machine: there is no encryption, so everyone on the way can read the passwords" in caplog.text


def test_a_login_is_counted_and_in_the_audit_log(path: Path, authority: Authority) -> None:
    """MON2: as one at a listener is."""
    settings = secured(authority, "SASL_SSL", **{"audit.topic": "audit"})
    context = authority.context()

    async def act(service: Service) -> None:
        for headers, status in ((basic("alice", "wonder:land"), 200), (basic("alice", "x"), 401)):
            found = await asyncio.to_thread(get, service.metrics, "/metrics", headers, context)
            assert found[0] == status
        metrics = service.server.broker.metrics
        await asyncio.to_thread(until, lambda: metrics.audit_events == 2, "both are in the log")
        assert metrics.logins == {("PLAIN", "success"): 1, ("PLAIN", "failure"): 1}

    with_service(path, act, **settings)
    with klamm.open(path) as store, store.consumer("audit", start="earliest") as consumer:
        events = [json.loads(record.value) for record in consumer.poll(timeout=0)]
    assert [(each["class_uid"], each["user"]["name"], each["status_id"]) for each in events] == [
        (3002, "alice", 1),
        (3002, "alice", 2),
    ]


def test_with_an_authorizer_a_user_needs_describe_on_the_cluster(path: Path, authority: Authority) -> None:
    def questions(address: str) -> None:
        headers = basic("alice", "wonder:land")
        for target in PATHS:
            status, text = get(address, target, headers)
            assert (status, text) == (403, "User:alice is not allowed DESCRIBE on CLUSTER\n")
        with klamm.open(path) as store:
            allowed = Acl(
                ResourceType.CLUSTER, CLUSTER_NAME, PatternType.LITERAL, "User:alice", "*", Operation.DESCRIBE,
                Permission.ALLOW,
            )  # fmt: skip
            Acls(store._acquired().catalog).add([allowed])
        assert get(address, "/metrics", headers)[0] == 200
        assert get(address, "/healthz", {})[0] == 200

    asked(path, secured(authority, "SASL_PLAINTEXT", **AUTHORIZED), questions)


@pytest.mark.parametrize(("super_users", "status"), [("User:ANONYMOUS", 200), ("User:alice", 403)])
def test_a_port_without_logins_has_the_rights_of_anonymous(path: Path, super_users: str, status: int) -> None:
    asked_for = lambda address: get(address, "/metrics", {})[0]  # noqa: E731
    assert asked(path, {**AUTHORIZED, "super.users": super_users}, asked_for) == status


def test_a_port_beside_a_listener_with_certificates_asks_for_one(path: Path, authority: Authority) -> None:
    settings = secured(
        authority,
        "SSL",
        **{"ssl.client.auth": "required", "super.users": "User:alice", **AUTHORIZED},
        **{"ssl.principal.mapping.rules": "RULE:^CN=(alice|bob),.*$/$1/"},
    )

    def questions(address: str) -> None:
        for name, status in (("alice", 200), ("bob", 403), ("carol", 403)):  # no rule fits carol
            context = authority.context(authority.client(name))
            assert get(address, "/healthz", {}, context)[0] == 200
            assert get(address, "/metrics", {}, context)[0] == status
        with pytest.raises((OSError, http.client.HTTPException)):
            get(address, "/metrics", {}, authority.context())

    asked(path, settings, questions, failures=1)


def test_a_token_is_taken_where_listeners_take_one(path: Path, tmp_path: Path) -> None:
    issuer = Issuer(tmp_path / "jwks.json")
    settings = {
        **settings_of(issuer),
        "sasl.enabled.mechanisms": "OAUTHBEARER",
        "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
    }

    def questions(address: str) -> list[int]:
        tokens = [issuer.token(), issuer.token(exp=int(time.time()) - 100)]
        asked_with = [{"Authorization": f"Bearer {token}"} for token in tokens] + [basic("alice", "wonder:land")]
        return [get(address, "/metrics", headers)[0] for headers in asked_with]

    assert asked(path, settings, questions, failures=1) == [200, 401, 401]


def test_its_security_can_be_set(path: Path, authority: Authority) -> None:
    settings = secured(authority, "SASL_SSL", **{"metrics.security.protocol": "PLAINTEXT"})
    assert asked(path, settings, lambda address: get(address, "/metrics", {})[0]) == 200


@pytest.mark.parametrize("is_tls", [False, True])
def test_a_client_that_sends_a_byte_now_and_then_is_closed(
    monkeypatch: pytest.MonkeyPatch, authority: Authority, path: Path, is_tls: bool
) -> None:
    """MON1: sixteen of them would keep all others from asking whether the server is well."""
    monkeypatch.setattr(monitor, "_HEAD_S", 0.3)
    monkeypatch.setattr(monitor, "_LOOK_S", 0.05)

    def questions(address: str) -> None:
        host, _, port = address.partition(":")
        with socket.create_connection((host, int(port)), timeout=30) as slow:
            ended = threading.Event()

            def drip() -> None:
                try:
                    while not ended.wait(0.05):
                        slow.send(b"\x16" if is_tls else b"G")
                except OSError:
                    pass

            dripping = threading.Thread(target=drip)
            dripping.start()
            try:
                assert slow.recv(1) == b""
            except ConnectionError:
                pass
            finally:
                ended.set()
                dripping.join()
        monkeypatch.setattr(monitor, "_HEAD_S", 30.0)  # which a busy machine may need
        context = authority.context() if is_tls else None
        assert get(address, "/healthz", {}, context)[0] == 200

    asked(path, secured(authority, "SSL") if is_tls else {}, questions)
