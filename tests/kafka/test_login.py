"""Logins of clients that speak by hand: what they may send before, what a wrong password gets, when they expire."""

from __future__ import annotations

import base64
import itertools
import logging
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import klamm
from klamm.kafka.error_codes import ErrorCode
from klamm.kafka.security.scram import BadExchange, ScramExchange, parse_plain
from klamm.kafka.wire.frames import request_frame
from klamm.kafka.wire.messages import (
    ALTER_USER_SCRAM_CREDENTIALS,
    API_VERSIONS,
    APIS,
    CREATE_TOPICS,
    DESCRIBE_USER_SCRAM_CREDENTIALS,
    METADATA,
    PRODUCE,
    SASL_AUTHENTICATE,
    SASL_HANDSHAKE,
)
from klamm.store.scram import derive
from klamm.store.users import Users
from tests.interop.raw import ConnectionEnded, Raw
from tests.kafka.connect import Served, served
from tests.kafka.requests import producing, sealed
from tests.kafka.sasl_client import authenticate, choose, log_in, plain
from tests.procs import until

MECHANISMS = ["SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN"]
LISTENERS = "SASL_PLAINTEXT://127.0.0.1:0,PLAINTEXT://127.0.0.1:0"


@pytest.fixture
def users(store: klamm.Store) -> Users:
    users = Users(store._acquired().catalog)
    users.add("alice", "wonderland")
    users.add("bob", "=,builder")
    return users


def guarded(path: Path | str, **settings: Any) -> Any:
    return served(Path(path), **{"listeners": LISTENERS, "sasl_enabled_mechanisms": ",".join(MECHANISMS), **settings})


@pytest.fixture
def server(store: klamm.Store, users: Users) -> Iterator[Served]:
    with guarded(store.path, connection_failed_authentication_delay_ms=0) as running:
        yield running


def topics(raw: Raw) -> list[str]:
    return [topic.name for topic in raw.ask(METADATA, 12, topics=None).topics]


def is_closed(raw: Raw) -> bool:
    try:
        raw.receive()
    except ConnectionEnded:
        return True
    return False


# ---- logging in


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize(("user", "password"), [("alice", "wonderland"), ("bob", "=,builder")])
def test_a_client_with_the_right_password_is_served(server: Served, mechanism: str, user: str, password: str) -> None:
    with server.dial() as raw:
        response = log_in(raw, user, password, mechanism)
        assert (response.error_code, response.session_lifetime_ms) == (0, 0)
        assert topics(raw) == ["orders"]
    assert server.broker.metrics.logins == {(mechanism, "success"): 1}


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize(
    ("user", "password"), [("alice", "Wonderland"), ("carol", "wonderland"), ("bob", "wonderland")]
)
def test_a_wrong_password_and_a_user_that_does_not_exist_get_the_same_response(
    server: Served, mechanism: str, user: str, password: str
) -> None:
    with server.dial() as raw:
        response = log_in(raw, user, password, mechanism)
        assert response.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert response.error_message == (
            f"Authentication failed during authentication due to invalid credentials with SASL mechanism {mechanism}"
        )
        assert is_closed(raw)
    assert server.broker.metrics.logins == {(mechanism, "failure"): 1}


def test_a_user_that_does_not_exist_has_the_same_salt_each_time(server: Served) -> None:
    salts = []
    for _ in range(2):
        with server.dial() as raw:
            choose(raw, "SCRAM-SHA-512")
            challenge = bytes(authenticate(raw, b"n,,n=carol,r=nonce").auth_bytes)
            salts.append(challenge.split(b",")[1])
    assert salts[0] == salts[1]


def test_a_failed_login_is_answered_late(store: klamm.Store, users: Users) -> None:
    with guarded(store.path, connection_failed_authentication_delay_ms=600) as server, server.dial() as raw:
        began = time.monotonic()
        assert log_in(raw, "alice", "wrong").error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert time.monotonic() - began >= 0.6


def test_what_is_recorded_of_a_login_cannot_be_sent_again(server: Served) -> None:
    from scramp import ScramClient

    client: Any = ScramClient(["SCRAM-SHA-256"], "alice", "wonderland")
    with server.dial() as raw:
        choose(raw, "SCRAM-SHA-256")
        first = client.get_client_first().encode()
        client.set_server_first(bytes(authenticate(raw, first).auth_bytes).decode())
        final = client.get_client_final().encode()
        assert authenticate(raw, final).error_code == 0
    with server.dial() as raw:
        choose(raw, "SCRAM-SHA-256")
        authenticate(raw, first)
        assert authenticate(raw, final).error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert server.broker.metrics.logins == {("SCRAM-SHA-256", "success"): 1, ("SCRAM-SHA-256", "failure"): 1}


def test_a_mechanism_that_is_not_enabled_is_refused_and_those_that_are_listed(store: klamm.Store, users: Users) -> None:
    with served(Path(store.path), listeners=LISTENERS) as server, server.dial() as raw:
        response = choose(raw, "PLAIN")
        assert response.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM
        assert response.mechanisms == ["SCRAM-SHA-256", "SCRAM-SHA-512"]
        assert authenticate(raw, plain("alice", "wonderland")).error_code == ErrorCode.ILLEGAL_SASL_STATE
        assert log_in(raw, "alice", "wonderland").error_code == 0


def test_tokens_without_a_header_are_refused(server: Served) -> None:
    with server.dial() as raw:
        assert raw.ask(SASL_HANDSHAKE, 0, mechanism="PLAIN").error_code == ErrorCode.UNSUPPORTED_VERSION


def test_a_listener_without_sasl_has_no_logins(server: Served) -> None:
    address = f"127.0.0.1:{server.server.endpoints[1].port}"
    with Raw(address) as raw:
        assert topics(raw) == ["orders"]
        assert choose(raw, "PLAIN").error_code == ErrorCode.ILLEGAL_SASL_STATE
        assert authenticate(raw, b"").error_code == ErrorCode.ILLEGAL_SASL_STATE


def test_clients_are_told_to_connect_to_the_listener_that_they_came_by(store: klamm.Store, users: Users) -> None:
    advertised = "SASL_PLAINTEXT://broker.example:9999"
    with guarded(store.path, advertised_listeners=advertised) as server:
        with server.dial() as raw:
            log_in(raw, "alice", "wonderland")
            (broker,) = raw.ask(METADATA, 12, topics=[]).brokers
            assert (broker.host, broker.port) == ("broker.example", 9999)
        port = server.server.endpoints[1].port
        with Raw(f"127.0.0.1:{port}") as raw:
            (broker,) = raw.ask(METADATA, 12, topics=[]).brokers
            assert (broker.host, broker.port) == ("127.0.0.1", port)


def test_no_log_of_a_session_has_a_password(store: klamm.Store, users: Users, caplog: pytest.LogCaptureFixture) -> None:
    """Neither the server's log, at any level, nor the audit log, nor that of requests; in no form."""
    settings: dict[str, Any] = {"audit_topic": "audit", "request_log_size": 100, "metrics": 0}
    secrets = {"wonderland", "rabbit-hole", "won\0derland", "queen-of-hearts"}
    described = []
    with (
        caplog.at_level(logging.DEBUG),
        guarded(store.path, connection_failed_authentication_delay_ms=0, **settings) as server,
    ):
        log = server.server.listener.request_log
        assert log is not None
        for mechanism, password in itertools.product(MECHANISMS, ("wonderland", "rabbit-hole")):
            with server.dial() as raw:
                log_in(raw, "alice", password, mechanism)
                described.append(server.call(log.describe))
        for message in (plain("alice", "won\0derland"), plain("alice", "wonderland", "bob"), b"wonderland"):
            with server.dial() as raw:
                choose(raw, "PLAIN")
                assert authenticate(raw, message).error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        with server.dial() as raw:
            log_in(raw, "alice", "wonderland")
            change = _upsertion("carol", "queen-of-hearts")
            assert _alter(raw, upsertions=[change]) == {"carol": 0}
            described.append(server.call(log.describe))
    with store.consumer("audit", start="earliest") as consumer:
        events = [bytes(record.value) for record in consumer.poll(max_records=100, timeout=0)]
    assert len(events) == 2 * len(MECHANISMS) + 3 + 1 + 1
    logs = (caplog.text, repr(described), b"\n".join(events).decode())
    assert all("alice" in each for each in logs[::2]) and "AlterUserScramCredentials" in logs[1]
    hidden = {each.encode() for each in secrets} | {plain("alice", each) for each in secrets} | {change.salted_password}
    for secret in hidden:
        for form in (secret.hex(), base64.b64encode(secret).decode(), repr(secret)[2:-1]):
            assert not any(form in each for each in logs), form


# ---- before the login


@pytest.mark.parametrize("api", [api for api in APIS.values() if api.key not in (17, 18, 36)], ids=lambda api: api.name)
def test_before_the_login_every_other_request_closes_the_connection_undecoded(server: Served, api: Any) -> None:
    with server.dial() as raw:
        assert raw.ask(API_VERSIONS, 0).error_code == 0
        header = b"%c%c\0\0\0\0\0\1\xff\xff" % (api.key >> 8, api.key & 255)
        raw.send_bytes(len(header).to_bytes(4, "big") + header)  # whose body is missing: it would be malformed
        assert is_closed(raw)
    assert server.broker.metrics.unauthenticated_requests == 1
    assert server.broker.metrics.malformed == 0


def test_before_the_login_nothing_else_is_in_the_log_of_requests(
    store: klamm.Store, users: Users, monkeypatch: pytest.MonkeyPatch
) -> None:
    with guarded(store.path, request_log_size=5, metrics=0) as server:
        log, decoded = server.server.listener.request_log, list[int]()
        assert log is not None
        monkeypatch.setattr(log, "add", lambda _, frame: decoded.append(int.from_bytes(frame[:2], "big")))
        with server.dial() as raw:
            assert raw.ask(API_VERSIONS, 0).error_code == 0
            raw.send(METADATA, 12, topics=None)
            assert is_closed(raw)
    assert decoded == [API_VERSIONS.key]


def test_before_the_login_large_frames_are_not_read(store: klamm.Store, users: Users) -> None:
    with guarded(store.path, sasl_server_max_receive_size=2000) as server:
        with server.dial() as raw:
            raw.send_bytes((2001).to_bytes(4, "big") + b"\0\x12")
            assert is_closed(raw)
            assert server.broker.metrics.malformed == 1  # and it was not closed because it did not log in in time
        with server.dial() as raw:
            choose(raw, "PLAIN")
            assert authenticate(raw, plain("alice", "x" * 1900)).error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        with server.dial() as raw:
            choose(raw, "PLAIN")
            with pytest.raises(ConnectionEnded):  # though it has arrived in one piece
                authenticate(raw, plain("alice", "x" * 2100))
        with server.dial() as raw:
            log_in(raw, "alice", "wonderland")
            names = [METADATA.request.Topic(name=f"{n:0100}") for n in range(100)]
            assert len(raw.ask(METADATA, 12, topics=names, allow_auto_topic_creation=False).topics) == 100


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
def test_what_is_sent_ahead_of_the_login_is_not_handled(
    store: klamm.Store, users: Users, server: Served, mechanism: str
) -> None:
    """A client that waits for no response: requests behind a login that fails, or is not over."""
    with server.dial() as raw:
        raw.send(SASL_HANDSHAKE, 1, mechanism=mechanism)
        raw.send(SASL_AUTHENTICATE, 2, auth_bytes=plain("alice", "x") if mechanism == "PLAIN" else b"n,,n=alice,r=x")
        raw.send(CREATE_TOPICS, 7, topics=[CREATE_TOPICS.request.Topic(name="mine", num_partitions=1)], timeout_ms=1000)
        raw.send(PRODUCE, 9, **producing({("orders", 0): sealed(1)}))
        for _ in range(2):
            raw.receive()
        assert is_closed(raw)
    assert list(store.topics) == ["orders"]
    assert server.broker.core.topic("orders").partition(0).ends().end == 0
    metrics = server.broker.metrics
    assert set(metrics.requests) == {"SaslHandshake", "SaslAuthenticate"}


def test_a_request_of_sasl_is_never_large(store: klamm.Store, users: Users) -> None:
    """Messages of SASL are taken apart on the loop; a client that has logged in may send 8 MiB of other requests."""
    with guarded(store.path, sasl_server_max_receive_size=1024) as server, server.dial() as raw:
        assert log_in(raw, "alice", "wonderland").error_code == 0
        assert raw.ask(METADATA, 12, topics=[METADATA.request.Topic(name="x" * 200)] * 30).topics
        choose(raw, "SCRAM-SHA-256")
        raw.send(SASL_AUTHENTICATE, 2, auth_bytes=b"," * 2000)
        assert is_closed(raw)
        assert server.broker.metrics.logins == {("SCRAM-SHA-256", "success"): 1}


def test_a_flood_before_the_login_ends_with_its_time_and_delays_no_one(store: klamm.Store, users: Users) -> None:
    """ApiVersions may be asked for before the login, and as often as a client likes; for so long, and in turns."""
    with guarded(store.path, connection_setup_timeout_ms=1000) as server, server.dial() as stranger:
        frame = b"".join(request_frame(API_VERSIONS, 3, 1, "x", API_VERSIONS.request()))
        flooding = threading.Thread(target=flood, args=(stranger, frame))
        flooding.start()
        served_meanwhile = 0
        while flooding.is_alive():
            with server.dial() as raw:
                assert log_in(raw, "alice", "wonderland").error_code == 0
                served_meanwhile += topics(raw) == ["orders"]
        flooding.join()
        assert served_meanwhile >= 2 and server.broker.metrics.login_timeouts == 1


def flood(raw: Raw, frame: bytes) -> None:
    """Send that until the connection is closed; nothing is read."""
    raw._socket.settimeout(30)
    try:
        while True:
            raw.send_bytes(frame * 100)
    except OSError:
        pass


def test_a_connection_that_does_not_log_in_in_time_is_closed(store: klamm.Store, users: Users) -> None:
    with guarded(store.path, connection_setup_timeout_ms=60_000) as server:
        with server.dial() as silent, server.dial() as slow, server.dial() as logged_in:
            choose(slow, "PLAIN")
            log_in(logged_in, "alice", "wonderland")
            server.advance(60)
            assert is_closed(silent)
            assert is_closed(slow)
            assert topics(logged_in) == ["orders"]
        assert server.broker.metrics.login_timeouts == 2
        until(lambda: server.broker.metrics.connections == 0, "all are gone")


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"alice\0wonderland",
        b"\0alice\0",
        b"\0\0wonderland",
        b"bob\0alice\0wonderland",
        b"\0alice\0won\0derland",
        b"\0al\xffice\0wonderland",
    ],
)
def test_a_message_that_is_not_one_of_plain_fails(server: Served, message: bytes) -> None:
    with pytest.raises(BadExchange):
        parse_plain(message)
    with server.dial() as raw:
        choose(raw, "PLAIN")
        assert authenticate(raw, message).error_code == ErrorCode.SASL_AUTHENTICATION_FAILED


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"n,,",
        b"n,,n=alice",
        b"n,,r=nonce,n=alice",
        b"p=tls-unique,,n=alice,r=nonce",
        b"n,a=bob,n=alice,r=nonce",
        b"n,,n=,r=nonce",
        b"n,,n=alice,r=",
        b"n,,n=alice,r=no\x01nce",
        b"n,,n=al=ice,r=nonce",
        b"n,,n=al\xffice,r=nonce",
        b"n,,n=alice,r=nonce,tokenauth=true",
    ],
)
def test_a_first_message_that_is_not_one_of_scram_fails(server: Served, message: bytes) -> None:
    with pytest.raises(BadExchange):
        ScramExchange("SCRAM-SHA-256").begin(message)
    with server.dial() as raw:
        choose(raw, "SCRAM-SHA-256")
        assert authenticate(raw, message).error_code == ErrorCode.SASL_AUTHENTICATION_FAILED


@pytest.mark.parametrize(
    "change", [(b"biws", b"eSws"), (b",r=", b",r=x"), (b",p=", b",p=!"), (b",p=", b",q="), (b"c=", b"d=")]
)
def test_a_last_message_that_is_not_one_of_scram_fails(change: tuple[bytes, bytes]) -> None:
    from scramp import ScramClient

    def outcome(*replaced: bytes) -> bytes | None:
        client: Any = ScramClient(["SCRAM-SHA-256"], "alice", "wonderland")
        exchange = ScramExchange("SCRAM-SHA-256")
        assert exchange.begin(client.get_client_first().encode()) == "alice"
        client.set_server_first(exchange.challenge(derive("SCRAM-SHA-256", "wonderland", iterations=4096)).decode())
        final = client.get_client_final().encode()
        return exchange.finish(final.replace(*replaced) if replaced else final)

    assert outcome() is not None
    if change == (b",r=", b",r=x"):
        assert outcome(*change) is None  # the nonce ends in ours, as Kafka wants it; the proof is of another message
    else:
        with pytest.raises(BadExchange):
            outcome(*change)


# ---- logging in again


def test_a_login_expires_and_can_be_renewed(store: klamm.Store, users: Users) -> None:
    with guarded(store.path, connections_max_reauth_ms=100_000) as server, server.dial() as raw, server.dial() as other:
        assert log_in(raw, "alice", "wonderland").session_lifetime_ms == 100_000
        log_in(other, "bob", "=,builder")
        server.advance(60)
        assert topics(raw) == ["orders"]
        assert log_in(raw, "alice", "wonderland").error_code == 0
        server.advance(60)  # more than the first login lasted
        assert topics(raw) == ["orders"]
        with pytest.raises(ConnectionEnded):
            topics(other)
        assert server.broker.metrics.unauthenticated_requests == 1


def test_a_connection_that_logs_in_again_stays_who_it_was(server: Served) -> None:
    with server.dial() as raw:
        log_in(raw, "alice", "wonderland")
        assert log_in(raw, "bob", "=,builder").error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert is_closed(raw)


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-512", "PLAIN"])
def test_a_connection_that_logs_in_again_does_so_by_the_same_mechanism(server: Served, mechanism: str) -> None:
    """As in Kafka, and in its words."""
    with server.dial() as raw:
        log_in(raw, "alice", "wonderland")
        response = log_in(raw, "alice", "wonderland", mechanism)
        assert response.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert response.error_message == (
            f"SASL mechanism '{mechanism}' requested by client is not supported for re-authentication of mechanism"
            " 'SCRAM-SHA-256'"
        )
        assert is_closed(raw)
    assert server.broker.metrics.logins == {("SCRAM-SHA-256", "success"): 1, (mechanism, "failure"): 1}


def test_a_user_that_is_removed_cannot_log_in_again(server: Served, users: Users) -> None:
    with server.dial() as raw:
        log_in(raw, "alice", "wonderland")
        users.remove("alice")
        assert topics(raw) == ["orders"]
        assert log_in(raw, "alice", "wonderland").error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert is_closed(raw)


def test_a_new_password_counts_at_once_and_the_old_one_no_more(server: Served, users: Users) -> None:
    users.set_password("alice", "looking glass")
    for mechanism in MECHANISMS:
        with server.dial() as raw:
            assert log_in(raw, "alice", "looking glass", mechanism).error_code == 0
        with server.dial() as raw:
            assert log_in(raw, "alice", "wonderland", mechanism).error_code != 0


# ---- users over the wire


def _upsertion(name: str, password: str, mechanism: int = 1, iterations: int = 4096) -> Any:
    import hashlib

    kind = "sha256" if mechanism == 1 else "sha512"
    salted = hashlib.pbkdf2_hmac(kind, password.encode(), b"a salt of its own", iterations)
    return ALTER_USER_SCRAM_CREDENTIALS.request.Upsertion(
        name=name, mechanism=mechanism, iterations=iterations, salt=b"a salt of its own", salted_password=salted
    )


def _deletion(name: str, mechanism: int = 1) -> Any:
    return ALTER_USER_SCRAM_CREDENTIALS.request.Deletion(name=name, mechanism=mechanism)


def _alter(raw: Raw, *, deletions: Any = (), upsertions: Any = ()) -> dict[str, ErrorCode]:
    response = raw.ask(ALTER_USER_SCRAM_CREDENTIALS, 0, deletions=list(deletions), upsertions=list(upsertions))
    return {each.user: ErrorCode(each.error_code) for each in response.results}


def test_users_are_made_described_and_removed_by_clients(server: Served) -> None:
    with server.dial() as raw:
        log_in(raw, "alice", "wonderland")
        assert _alter(raw, upsertions=[_upsertion("carol", "new"), _upsertion("carol", "new", 2, 5000)]) == {"carol": 0}
        with server.dial() as other:
            assert log_in(other, "carol", "new", "SCRAM-SHA-512").error_code == 0
        described = raw.ask(DESCRIBE_USER_SCRAM_CREDENTIALS, 0, users=None)
        assert {
            each.user: [(info.mechanism, info.iterations) for info in each.credential_infos]
            for each in described.results
        } == {"alice": [(1, 16384), (2, 16384)], "bob": [(1, 16384), (2, 16384)], "carol": [(1, 4096), (2, 5000)]}
        assert _alter(raw, deletions=[_deletion("carol", 1), _deletion("carol", 2)]) == {"carol": 0}
        kind = DESCRIBE_USER_SCRAM_CREDENTIALS.request.User
        requested = [kind(name=name) for name in ("carol", "alice", "bob", "bob")]
        codes = {
            each.user: each.error_code for each in raw.ask(DESCRIBE_USER_SCRAM_CREDENTIALS, 0, users=requested).results
        }
        assert codes == {"carol": ErrorCode.RESOURCE_NOT_FOUND, "alice": 0, "bob": ErrorCode.DUPLICATE_RESOURCE}


def test_what_is_wrong_with_one_user_is_its_own_error(server: Served) -> None:
    with server.dial() as raw:
        log_in(raw, "alice", "wonderland")
        short = _upsertion("short", "x")
        short.salted_password = b"x"
        codes = _alter(
            raw,
            deletions=[_deletion("nobody"), _deletion("bob", 7)],
            upsertions=[
                _upsertion("fine", "x"),
                _upsertion("few", "x", iterations=4095),
                _upsertion("many", "x", iterations=16385),
                _upsertion("", "x"),
                _upsertion("twice", "x"),
                _upsertion("twice", "y"),
                short,
            ],
        )
        assert codes == {
            "nobody": ErrorCode.RESOURCE_NOT_FOUND,
            "bob": ErrorCode.UNSUPPORTED_SASL_MECHANISM,
            "fine": ErrorCode.NONE,
            "few": ErrorCode.UNACCEPTABLE_CREDENTIAL,
            "many": ErrorCode.UNACCEPTABLE_CREDENTIAL,
            "": ErrorCode.UNACCEPTABLE_CREDENTIAL,
            "twice": ErrorCode.DUPLICATE_RESOURCE,
            "short": ErrorCode.UNACCEPTABLE_CREDENTIAL,
        }
    assert [user.name for user in server.broker.users.all()] == ["alice", "bob", "fine"]


def test_a_request_of_sasl_that_is_malformed_closes_its_connection_only(server: Served) -> None:
    with server.dial() as raw, server.dial() as other:
        log_in(other, "alice", "wonderland")
        choose(raw, "PLAIN")
        raw.send_bytes(b"\0\0\0\x0c" + SASL_AUTHENTICATE.key.to_bytes(2, "big") + b"\0\1\0\0\0\1\xff\xff\x7f\xff")
        assert is_closed(raw)
        assert topics(other) == ["orders"]
