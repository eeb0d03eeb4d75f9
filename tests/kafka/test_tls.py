"""TLS: who is let in by which certificate, what is sent how, and how certificates are exchanged."""

from __future__ import annotations

import datetime
import socket
import ssl
import threading
import warnings
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.name import _ASN1Type
from cryptography.x509.oid import NameOID

import klamm
from klamm.errors import InvalidSetting
from klamm.kafka.security import tls
from klamm.kafka.security.certificates import Certificates
from klamm.kafka.security.principals import PrincipalRules, distinguished_name
from klamm.kafka.security.tls import TlsTransport
from klamm.kafka.settings import ServerSettings
from klamm.kafka.wire.messages import FETCH, METADATA
from klamm.store.users import Users
from tests.interop.raw import ConnectionEnded, Raw
from tests.kafka.authorities import Authority, TlsRaw
from tests.kafka.connect import Served, served
from tests.kafka.requests import FetchFrom, fetch, fetching, produce, sealed, values
from tests.kafka.sasl_client import log_in
from tests.kafka.test_limits import rss
from tests.procs import until
from tests.serving import serving


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("stranger"))


def secured(store: klamm.Store, authority: Authority, listeners: str = "SSL", **settings: Any) -> Any:
    where = ",".join(f"{name}://127.0.0.1:0" for name in listeners.split(","))
    keystore = authority.path.with_name("server.pem")
    return served(Path(store.path), **{"listeners": where, "ssl_keystore_location": str(keystore), **settings})


def mutual(store: klamm.Store, authority: Authority, **settings: Any) -> Any:
    truststore = str(authority.path)
    return secured(
        store, authority, **{"ssl_client_auth": "required", "ssl_truststore_location": truststore, **settings}
    )


@pytest.fixture
def server(store: klamm.Store, authority: Authority) -> Iterator[Served]:
    with secured(store, authority) as running:
        yield running


def topics(raw: Raw) -> list[str]:
    return [topic.name for topic in raw.ask(METADATA, 12, topics=None).topics]


def principal(server: Served) -> str:
    (channel,) = server.server.listener.connections
    return channel.session.principal


def is_refused(address: str, context: ssl.SSLContext) -> bool:
    """Whether no request is answered: a client of TLS 1.3 learns with its first read that it is not let in."""
    try:
        with TlsRaw(address, context) as raw:
            topics(raw)
    except (ssl.SSLError, ConnectionEnded, ConnectionError):
        return True
    return False


def outcomes(server: Served) -> dict[str, int]:
    return server.broker.metrics.tls_handshakes


# ---- handshakes


def test_a_handshake_runs_in_a_thread_and_the_loop_serves_others(
    store: klamm.Store, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Signing takes about a millisecond: on the loop, a flood of handshakes would keep all clients waiting."""
    step, begun, gate = TlsTransport._step, threading.Event(), threading.Event()

    def held(self: TlsTransport) -> str | None:
        assert threading.current_thread().name.startswith("klamm-login")
        begun.set()
        assert gate.wait(30)
        return step(self)

    with secured(store, authority, "SSL,PLAINTEXT") as server:
        monkeypatch.setattr(TlsTransport, "_step", held)
        answers: list[list[str]] = []

        def connect() -> None:
            with TlsRaw(server.address, authority.context()) as raw:
                answers.append(topics(raw))

        client = threading.Thread(target=connect)
        client.start()
        assert begun.wait(30)
        with Raw(f"127.0.0.1:{server.server.endpoints[1].port}") as other:
            assert topics(other) == ["orders"]
        assert not answers
        gate.set()
        client.join(30)
        assert answers == [["orders"]]


def test_a_client_that_leaves_during_its_handshake_is_forgotten(
    store: klamm.Store, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    step, begun, gate = TlsTransport._step, threading.Event(), threading.Event()

    def held(self: TlsTransport) -> str | None:
        begun.set()
        assert gate.wait(30)
        return step(self)

    with secured(store, authority, connection_setup_timeout_ms=60_000) as server:
        monkeypatch.setattr(TlsTransport, "_step", held)
        with server.dial() as raw:
            raw.send_bytes(b"\x16\x03\x01\0\x05hello")
            assert begun.wait(30)
            server.advance(60)
        until(lambda: server.broker.metrics.connections == 0, "its time is over")
        gate.set()
        monkeypatch.setattr(TlsTransport, "_step", step)
        with TlsRaw(server.address, authority.context()) as raw:
            assert topics(raw) == ["orders"]
        assert outcomes(server) == {"timeout": 1, "success": 1}


def test_nothing_is_read_during_a_step_of_a_handshake_when_the_socket_takes_more(
    store: klamm.Store, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread alone uses the SSL object then; a second step beside it would, too."""
    step, begun, gate = TlsTransport._step, threading.Event(), threading.Event()

    def held(self: TlsTransport) -> str | None:
        outcome = step(self)  # it has taken what there was
        begun.set()
        assert gate.wait(30)
        return outcome

    with secured(store, authority) as server, ThreadPoolExecutor(1) as pool:
        monkeypatch.setattr(TlsTransport, "_step", held)
        connecting = pool.submit(TlsRaw, server.address, authority.context())
        try:
            assert begun.wait(30)
            (channel,) = server.server.listener.connections
            transport: Any = channel._transport
            server.call(transport.pause_writing)
            server.call(transport.resume_writing)
            assert not server.call(transport._transport.is_reading)
        finally:
            gate.set()
        with connecting.result(30) as raw:
            assert topics(raw) == ["orders"]


def test_an_idle_connection_takes_little_memory(store: klamm.Store, authority: Authority) -> None:
    """10,000 of them (max.connections) take less than 400 MB."""
    count, context = 300, authority.context()
    settings = ["listeners=SSL://127.0.0.1:0", f"ssl.keystore.location={authority.path.with_name('server.pem')}"]
    options = [word for setting in settings for word in ("--set", setting)]
    with serving(Path(store.path), "--config", "/dev/null", *options) as process:
        address = process.address.removeprefix("SSL://")
        with ExitStack() as stack:
            for _ in range(20):  # what is made once
                topics(stack.enter_context(TlsRaw(address, context)))
            before = rss(process.pid)
            for _ in range(count):
                topics(stack.enter_context(TlsRaw(address, context)))
            assert (rss(process.pid) - before) / count < 40 * 1024


# ---- requests and responses


def test_requests_and_records_go_through(server: Served, authority: Authority) -> None:
    with TlsRaw(server.address, authority.context()) as raw:
        assert topics(raw) == ["orders"]
        assert produce(raw, "orders", sealed([b"hello"])).error_code == 0
        assert raw.tls.version() == "TLSv1.3"
    assert outcomes(server) == {"success": 1}


@pytest.mark.parametrize("size", [1, 16_383, 16_384, 16_385, 40_000, 900_000])
def test_requests_and_responses_of_any_size_arrive_as_they_were_sent(
    server: Served, authority: Authority, size: int
) -> None:
    value = bytes(range(256)) * (size // 256 + 1)
    with TlsRaw(server.address, authority.context()) as raw:
        assert produce(raw, "orders", sealed([value[:size]]), acks=-1).error_code == 0
        assert values(fetch(raw, "orders", 0)) == [value[:size]]


def test_many_requests_at_once_are_answered_in_order(server: Served, authority: Authority) -> None:
    with TlsRaw(server.address, authority.context()) as raw:
        numbers = [raw.send(METADATA, 12, topics=None) for _ in range(2000)]
        answered = [int.from_bytes(raw.receive()[:4], "big") for _ in numbers]
        assert answered == numbers


def test_requests_that_came_with_one_that_waits_are_answered_though_nothing_more_comes(
    server: Served, authority: Authority
) -> None:
    with TlsRaw(server.address, authority.context()) as raw:
        topics(raw)
        sent = threading.Event()
        server.loop.call_soon_threadsafe(sent.wait, 30)  # so that the server receives all of them at once
        numbers = [raw.send(FETCH, 12, **fetching({("orders", 0): 0}, wait_ms=300))]
        numbers += [raw.send(METADATA, 12, topics=None) for _ in range(20)]
        sent.set()
        assert [int.from_bytes(raw.receive()[:4], "big") for _ in numbers] == numbers


def test_a_client_that_does_not_read_for_a_while_gets_everything(
    server: Served, store: klamm.Store, authority: Authority
) -> None:
    payload = [bytes([n]) * 500_000 for n in range(20)]
    store.append_many("orders", payload, partition=0, acks=1)
    with TlsRaw(server.address, authority.context()) as raw:
        number = raw.send(FETCH, 12, **fetching({("orders", 0): FetchFrom(0, 20 << 20)}))
        until(lambda: any(c.writer.is_busy for c in server.server.listener.connections), "the socket is full")
        response = raw.receive()
        assert int.from_bytes(response[:4], "big") == number
        assert all(each in response for each in payload)


@pytest.mark.parametrize("listener", ["SSL", "PLAINTEXT"])
def test_a_client_that_sends_no_more_gets_the_rest_of_the_response(
    listener: str, store: klamm.Store, authority: Authority
) -> None:
    payload = [bytes([n]) * 500_000 for n in range(20)]
    store.append_many("orders", payload, partition=0, acks=1)
    with secured(store, authority, listener) as server:
        with Raw(server.address) if listener == "PLAINTEXT" else TlsRaw(server.address, authority.context()) as raw:
            raw.send(FETCH, 12, **fetching({("orders", 0): FetchFrom(0, 20 << 20)}))
            until(lambda: any(c.writer.is_busy for c in server.server.listener.connections), "the socket is full")
            socket.socket.shutdown(raw._socket, socket.SHUT_WR)  # of the connection, not of TLS
            response = raw.receive()
            assert all(each in response for each in payload)
            with pytest.raises((ConnectionEnded, ssl.SSLEOFError)):
                raw.receive()
        until(lambda: not server.server.listener.connections, "it is closed")


# ---- who is let in


def test_a_client_that_does_not_speak_tls_is_refused_and_others_are_served(
    server: Served, authority: Authority
) -> None:
    with Raw(server.address) as raw, pytest.raises(ConnectionEnded):
        topics(raw)
    with TlsRaw(server.address, authority.context()) as raw:
        assert topics(raw) == ["orders"]
    assert outcomes(server) == {"failure": 1, "success": 1}


def test_a_client_that_trusts_another_authority_does_not_connect(server: Served, stranger: Authority) -> None:
    with pytest.raises(ssl.SSLCertVerificationError):
        TlsRaw(server.address, stranger.context())
    until(lambda: outcomes(server) == {"failure": 1} or outcomes(server) == {"success": 1}, "it is counted")


def test_versions_before_tls_1_2_are_refused(server: Served, authority: Authority) -> None:
    context = authority.context()
    context.set_ciphers("ALL:@SECLEVEL=0")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python warns of these versions
        context.minimum_version = ssl.TLSVersion.TLSv1
        context.maximum_version = ssl.TLSVersion.TLSv1_1
    assert is_refused(server.address, context)
    until(lambda: outcomes(server) == {"failure": 1}, "it is counted")
    context = authority.context()
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with TlsRaw(server.address, context) as raw:
        assert topics(raw) == ["orders"]


def test_a_handshake_that_is_not_finished_in_time_ends(store: klamm.Store, authority: Authority) -> None:
    with secured(store, authority, connection_setup_timeout_ms=60_000) as server:
        host, port = server.address.split(":")
        with socket.create_connection((host, int(port))) as silent, socket.create_connection((host, int(port))) as half:
            half.sendall(b"\x16\x03\x01\x02\x00\x01\x00")  # the beginning of a ClientHello
            until(lambda: server.broker.metrics.connections == 2, "they count as connections do")
            server.advance(60)
            assert silent.recv(1) == b"" and half.recv(1) == b""
        with TlsRaw(server.address, authority.context()) as raw:
            topics(raw)
            server.advance(60)
            assert topics(raw) == ["orders"]
        assert outcomes(server) == {"timeout": 2, "success": 1}


def test_connections_in_their_handshake_count_in_the_limits(store: klamm.Store, authority: Authority) -> None:
    with secured(store, authority, max_connections_per_ip=1) as server:
        host, port = server.address.split(":")
        with socket.create_connection((host, int(port))):
            until(lambda: server.broker.metrics.connections == 1, "it counts")
            assert is_refused(server.address, authority.context())
        until(lambda: server.broker.metrics.connections == 0, "it is gone")
        assert not is_refused(server.address, authority.context())


# ---- certificates of clients


def test_a_client_with_a_certificate_is_whom_it_names(store: klamm.Store, authority: Authority) -> None:
    rules = "RULE:^CN=(.*?),OU=billing.*$/$1@billing/U,DEFAULT"
    with mutual(store, authority, ssl_principal_mapping_rules=rules) as server:
        with TlsRaw(server.address, authority.context(authority.client("alice"))) as raw:
            assert topics(raw) == ["orders"]
            assert principal(server) == "User:ALICE@BILLING"
        until(lambda: server.broker.metrics.connections == 0, "it is gone")
        with TlsRaw(server.address, authority.context(authority.client("bob", unit="sales"))) as raw:
            assert topics(raw) == ["orders"]
            assert principal(server) == "User:CN=bob,OU=sales,O=Example"


def test_a_client_without_a_certificate_or_with_a_wrong_one_is_refused(
    store: klamm.Store, authority: Authority, stranger: Authority
) -> None:
    with mutual(store, authority) as server:
        for number, certificate in enumerate(
            (None, stranger.client("alice"), authority.client("late", is_expired=True)), 1
        ):
            assert is_refused(server.address, authority.context(certificate))
            until(lambda count=number: outcomes(server) == {"failure": count}, "it is counted")  # type: ignore[misc]


def test_a_name_that_no_rule_fits_is_refused(store: klamm.Store, authority: Authority) -> None:
    with mutual(store, authority, ssl_principal_mapping_rules="RULE:^CN=carol,.*$/carol/") as server:
        assert is_refused(server.address, authority.context(authority.client("alice")))
        until(lambda: outcomes(server) == {"failure": 1}, "it is counted")


def test_a_certificate_that_is_requested_may_be_missing_but_not_wrong(
    store: klamm.Store, authority: Authority, stranger: Authority
) -> None:
    with mutual(store, authority, ssl_client_auth="requested") as server:
        with TlsRaw(server.address, authority.context()) as raw:
            assert topics(raw) == ["orders"]
            assert principal(server) == "User:ANONYMOUS"
        assert is_refused(server.address, authority.context(stranger.client("alice")))


def test_passwords_over_tls(store: klamm.Store, authority: Authority) -> None:
    Users(store._acquired().catalog).add("alice", "wonderland")
    with mutual(store, authority, listeners="SASL_SSL,PLAINTEXT") as server:
        with TlsRaw(server.address, authority.context()) as raw:  # it needs no certificate: it logs in
            assert log_in(raw, "alice", "wonderland").error_code == 0
            assert topics(raw) == ["orders"]
            assert principal(server) == "User:alice"
        with TlsRaw(server.address, authority.context()) as raw, pytest.raises(ConnectionEnded):
            topics(raw)
        with Raw(f"127.0.0.1:{server.server.endpoints[1].port}") as raw:
            assert topics(raw) == ["orders"]


def test_a_session_that_is_resumed_lets_in_no_longer_than_its_certificate(
    store: klamm.Store, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TLS5: OpenSSL looks at a certificate in the first handshake of a session alone."""
    context = authority.context(authority.client("alice"))
    with mutual(store, authority) as server:
        with TlsRaw(server.address, context) as raw:
            assert topics(raw) == ["orders"]
            session = raw.tls.session
        with TlsRaw(server.address, context, session) as raw:
            assert topics(raw) == ["orders"]
            assert raw.tls.session_reused
            session = raw.tls.session
        later = 2.0**36  # no certificate is valid for that long
        monkeypatch.setattr(tls, "time", SimpleNamespace(time=lambda: later))
        with pytest.raises((ConnectionEnded, ConnectionError)), TlsRaw(server.address, context, session) as raw:
            topics(raw)
        assert outcomes(server) == {"success": 2, "failure": 1}


# ---- files


def test_new_certificates_are_taken_up_and_connections_stay(store: klamm.Store, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    authority.server()
    with secured(store, authority) as server, TlsRaw(server.address, authority.context()) as before:
        first = before.tls.getpeercert()
        assert topics(before) == ["orders"]
        authority.server()

        def is_new() -> bool:
            with TlsRaw(server.address, authority.context()) as raw:
                return raw.tls.getpeercert() != first

        until(is_new, "new connections get the new certificate")
        assert topics(before) == ["orders"]
        assert server.broker.certificates is not None and server.broker.certificates.reloads == 1


def test_certificates_are_exchanged_under_load_without_a_dropped_connection(store: klamm.Store, tmp_path: Path) -> None:
    """Producers and consumers go on, on their connections; clients that come meanwhile get the old one or the new."""
    authority, exchanges, is_over = Authority(tmp_path), 2, threading.Event()
    authority.server()
    sent: list[int] = []
    with secured(store, authority) as server, ThreadPoolExecutor(5) as pool:

        def write() -> None:
            with TlsRaw(server.address, authority.context()) as raw:
                while not is_over.is_set():
                    response = produce(raw, "orders", sealed(5, padding=20_000), acks=-1)
                    assert response.error_code == 0
                    sent.append(response.base_offset)

        def is_written(raw: Raw, offset: int) -> bool:
            """Whether there is more, or a batch may still come."""
            is_last = all(each.done() for each in writing)
            return not is_last or fetch(raw, "orders", offset).high_watermark > offset

        def read() -> int:
            offset = 0
            with TlsRaw(server.address, authority.context()) as raw:
                while not is_over.is_set() or is_written(raw, offset):
                    offset += len(values(fetch(raw, "orders", offset, wait_ms=50)))
            return offset

        seen = set[str]()  # certificates of the server

        def come_again() -> None:
            while not is_over.is_set():
                with TlsRaw(server.address, authority.context()) as raw:
                    assert topics(raw) == ["orders"]
                    seen.add(str((raw.tls.getpeercert() or {})["serialNumber"]))

        writing, reading, coming = [pool.submit(write) for _ in range(2)], pool.submit(read), pool.submit(come_again)
        work: list[Future[Any]] = [*writing, reading, coming]
        for number in range(exchanges + 1):
            many = len(sent) + 5

            def go_on(count: int = many, certificates: int = number + 1) -> bool:
                is_seen = len(sent) >= count and len(seen) >= certificates
                return is_seen or any(each.done() for each in work)

            until(go_on, "they go on, and one has come again")
            if number < exchanges:
                authority.server()
                until(lambda count=number: server.broker.certificates.reloads > count, "it is taken up")  # type: ignore[misc]
        is_over.set()
        for each in work:
            each.result(30)
        assert outcomes(server) == {"success": server.broker.metrics.connections_total}
        assert len(sent) == len(set(sent)) and reading.result() == 5 * len(sent)
        assert len(seen) == exchanges + 1


def test_files_that_cannot_be_loaded_change_nothing(store: klamm.Store, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    path = authority.server()
    with secured(store, authority) as server:
        certificates = server.broker.certificates
        assert certificates is not None
        for content in (b"", path.read_bytes()[:300]):
            failed = certificates.failed_reloads
            path.write_bytes(content)
            until(lambda count=failed: certificates.failed_reloads == count + 1, "it is noticed")  # type: ignore[misc]
            assert not is_refused(server.address, authority.context())
        path.unlink()
        until(lambda: certificates.failed_reloads == 3, "it is noticed")
        authority.server()
        until(lambda: certificates.reloads == 1, "the next one is taken")


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({}, "ssl.keystore.location: is empty"),
        ({"ssl_keystore_location": "missing.pem"}, "No such file"),
        ({"ssl_keystore_location": "authority.pem"}, "ssl.keystore.location"),
        ({"ssl_keystore_location": "server.pem", "ssl_key_location": "alice.pem"}, "key values mismatch"),
        ({"ssl_keystore_location": "server.pem", "ssl_client_auth": "required"}, "ssl.truststore.location: is empty"),
        (
            {
                "ssl_keystore_location": "server.pem",
                "ssl_client_auth": "required",
                "ssl_truststore_location": "missing.pem",
            },
            "missing.pem: No such file",
        ),
    ],
)
def test_what_is_wrong_with_the_files_is_said_at_the_start(
    authority: Authority, settings: dict[str, str], named: str
) -> None:
    paths = {
        name: str(authority.path.with_name(value)) if value.endswith(".pem") else value
        for name, value in settings.items()
    }
    with pytest.raises(InvalidSetting, match=named):
        Certificates(ServerSettings.of({"listeners": "SSL://127.0.0.1:0", **paths}))


# ---- names


@pytest.mark.parametrize(
    ("parts", "name"),
    [
        (["C=DE", 'O=A, "B" + C', "CN=#x "], 'CN=\\#x\\ ,O=A\\, \\"B\\" \\+ C,C=DE'),
        (["CN=x,CN=admin", "emailAddress=a@b.c"], "1.2.840.113549.1.9.1=#16056140622e63,CN=x\\,CN\\=admin"),
        (["CN=admin\t"], "CN=admin\t"),
        (["CN=admin\u00a0", "serialNumber=7", "DC=dc", "UID=u"], "UID=u,DC=dc,2.5.4.5=#0c0137,CN=admin\u00a0"),
        (["CN=  two  ", "O=<a;b>\\\u00e9"], "O=\\<a\\;b\\>\\\\\u00e9,CN=\\ \\ two\\ \\ "),
        (["CN=a\rb\r", "O=n\nl\0z"], "O=n\nl\\00z,CN=a\rb\\\r"),
        (["CN= "], "CN=\\ "),
    ],
)
def test_names_are_written_as_java_writes_them(parts: list[str], name: str) -> None:
    """PRI1: what is expected is what X500Principal.getName() of Java 17 returns for the same certificate."""
    assert distinguished_name(certificate_of(parts)) == name


def certificate_of(parts: list[str]) -> bytes:
    """Return a certificate (DER) whose subject has these attributes."""
    oids = {"C": "COUNTRY_NAME", "O": "ORGANIZATION_NAME", "CN": "COMMON_NAME", "DC": "DOMAIN_COMPONENT"}
    oids |= {"UID": "USER_ID", "emailAddress": "EMAIL_ADDRESS", "serialNumber": "SERIAL_NUMBER"}
    attributes = []
    for part in parts:
        kind, _, value = part.partition("=")
        ascii_only = kind in ("emailAddress", "DC")
        of_type = _ASN1Type.IA5String if ascii_only else _ASN1Type.UTF8String if kind != "C" else None
        attributes.append(x509.NameAttribute(getattr(NameOID, oids[kind]), value, of_type))
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.datetime.now(datetime.UTC)
    subject = x509.Name(attributes)
    made = x509.CertificateBuilder(subject, subject, key.public_key(), 1, now, now + datetime.timedelta(days=1))
    return made.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.DER)


@pytest.mark.parametrize("common_name", ["admin\t", "\u00a0admin", "admin\u2003", "x,CN=admin", "admin\r", "Admin "])
def test_a_name_that_looks_like_another_is_not_that_user(common_name: str) -> None:
    """An authority may give certificates to whoever owns a name, and look at names with less care than it should."""
    for rules in ("RULE:^CN=(.*?),.*$/$1/", "RULE:^.*CN=([^,]+),.*$/$1/", "RULE:^.*CN=([^,]+),.*$/$1/L", "DEFAULT"):
        user = PrincipalRules(rules).apply(distinguished_name(certificate_of(["O=Example", f"CN={common_name}"])))
        assert user not in ("admin", "CN=admin,O=Example")


@pytest.mark.parametrize(
    ("rules", "name", "user"),
    [
        ("DEFAULT", "CN=a,O=b", "CN=a,O=b"),
        ("RULE:^CN=(.*?),.*$/$1/", "CN=Duke,OU=x", "Duke"),
        ("RULE:^CN=(.*?),.*$/$1/L", "CN=Duke,OU=x", "duke"),
        ("RULE:^CN=(.*?),OU=(.*?)$/$1@$2/U", "CN=Duke,OU=x", "DUKE@X"),
        ("RULE:^OU=.*$/x/, RULE:^CN=(\\w+).*$/$1/ ,DEFAULT", "CN=Duke,OU=x", "Duke"),
        ("RULE:^OU=.*$/x/,DEFAULT", "CN=Duke,OU=x", "CN=Duke,OU=x"),
        ("RULE:^OU=.*$/x/", "CN=Duke,OU=x", None),
        ("RULE:CN=(.*?)/$1/", "CN=Duke,OU=x", "Duke,OU=x"),
        ("RULE:(.*)/user-$1/", "CN=Duke", "user-CN=Dukeuser-"),
    ],
)
def test_rules_make_users_of_names(rules: str, name: str, user: str | None) -> None:
    assert PrincipalRules(rules).apply(name) == user


@pytest.mark.parametrize("rules", ["x", "RULE:", "RULE:a/b", "RULE:(/x/", "RULE:a/$1/", "DEFAULT x", "RULE:a/b/X"])
def test_what_is_not_a_rule_is_refused(rules: str) -> None:
    with pytest.raises(InvalidSetting, match=r"ssl\.principal\.mapping\.rules"):
        ServerSettings.of({"ssl.principal.mapping.rules": rules})
