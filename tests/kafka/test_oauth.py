"""Logins by signed tokens: what is let in, what is not, and what happens when the keys cannot be fetched."""

from __future__ import annotations

import http.server
import json
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

import klamm
from klamm.errors import InvalidSetting
from klamm.kafka.error_codes import ErrorCode
from klamm.kafka.security import key_download
from klamm.kafka.security.oauth import INVALID_TOKEN, Tokens, parse_bearer
from klamm.kafka.security.scram import BadExchange
from klamm.kafka.settings import ServerSettings
from klamm.kafka.wire.messages import METADATA
from tests.interop.raw import ConnectionEnded, Raw
from tests.kafka.authorities import Authority
from tests.kafka.connect import Served, served
from tests.kafka.sasl_client import authenticate, choose
from tests.kafka.tokens import AUDIENCE, Issuer, bearer, settings_of
from tests.procs import PATIENCE, until


@pytest.fixture(scope="module")
def issuer(tmp_path_factory: pytest.TempPathFactory) -> Issuer:
    return Issuer(tmp_path_factory.mktemp("issuer") / "jwks.json")


class Clock:
    def __init__(self) -> None:
        self.ahead_s = 0.0

    def __call__(self) -> float:
        return time.time() + self.ahead_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


def tokens_of(issuer: Issuer, clock: Clock, **settings: Any) -> Tokens:
    return Tokens(ServerSettings.of({**settings_of(issuer), **settings}), clock, clock)


# ---- what is let in


def test_a_token_of_the_issuer_is_the_user_that_it_names(issuer: Issuer, clock: Clock) -> None:
    tokens = tokens_of(issuer, clock)
    verified = tokens.verify(issuer.token())
    assert verified.user == "alice"
    assert verified.expires == pytest.approx(time.time() + 300 + 30, abs=5)
    assert tokens.verify(issuer.token(aud=["nobody", AUDIENCE])).user == "alice"
    named = tokens_of(issuer, clock, sasl_oauthbearer_sub_claim_name="client_id")
    assert named.verify(issuer.token(client_id="app")).user == "app"


def test_keys_of_rsa_count_too(tmp_path: Path, clock: Clock) -> None:
    issuer = Issuer(tmp_path / "jwks.json")
    issuer.add("rsa", rsa=True)
    issuer.publish()
    tokens = tokens_of(issuer, clock)
    for algorithm in ("RS256", "PS256"):
        assert tokens.verify(issuer.token("rsa", algorithm)).user == "alice"
    with pytest.raises(BadExchange, match="not allowed"):
        tokens.verify(issuer.token("rsa", "RS512"))
    with pytest.raises(BadExchange, match="for which its key is not"):
        tokens.verify(issuer.token("first", "RS256", issuer.keys["rsa"]))


ATTACKS: dict[str, Callable[[Issuer], str]] = {
    "no signature": lambda issuer: issuer.unsigned("none"),
    "None": lambda issuer: issuer.unsigned("None"),
    "the algorithm of the key, and no signature": lambda issuer: issuer.unsigned("ES256"),
    "the public key as a secret": lambda issuer: issuer.signed_with_the_public_key(),
    "expired": lambda issuer: issuer.token(exp=int(time.time()) - 31),
    "no expiry": lambda issuer: issuer.token(exp=None),
    "an expiry that is not a time": lambda issuer: issuer.token(exp="tomorrow"),
    "an expiry that no float can hold": lambda issuer: issuer.token(exp=10**400),
    "an expiry that is the largest float": lambda issuer: issuer.token(exp=1e308),
    "an expiry beyond what a response can say": lambda issuer: issuer.token(exp=10**17),
    "not valid yet": lambda issuer: issuer.token(nbf=int(time.time()) + 100),
    "issued in the future": lambda issuer: issuer.token(iat=int(time.time()) + 100),
    "another issuer": lambda issuer: issuer.token(iss="https://attacker.example"),
    "no issuer": lambda issuer: issuer.token(iss=None),
    "another audience": lambda issuer: issuer.token(aud="bank"),
    "no audience": lambda issuer: issuer.token(aud=None),
    "no user": lambda issuer: issuer.token(sub=None),
    "an empty user": lambda issuer: issuer.token(sub=""),
    "a user that is not text": lambda issuer: issuer.token(sub=["alice"]),
    "a user over two lines": lambda issuer: issuer.token(sub="alice\nUser:bob"),
    "a changed payload": lambda issuer: ".".join(
        (issuer.token().split(".")[0], issuer.token(sub="bob").split(".")[1], issuer.token().split(".")[2])
    ),
    "not a token": lambda issuer: "gibberish",
    "empty": lambda issuer: "",
    "encrypted": lambda issuer: issuer.token() + "..",
}


def attacks() -> dict[str, Callable[[Issuer], str]]:
    return {**ATTACKS, "an unknown key": _unknown_key, "the key of another": _foreign_key}


def _unknown_key(issuer: Issuer) -> str:
    other = Issuer(issuer.path.with_suffix(".other"))
    other.add("unknown")
    return other.token("unknown")


def _foreign_key(issuer: Issuer) -> str:
    return Issuer(issuer.path.with_suffix(".other")).token("first")


@pytest.mark.parametrize("attack", attacks())
def test_a_token_that_is_not_right_is_refused(issuer: Issuer, clock: Clock, attack: str) -> None:
    tokens = tokens_of(issuer, clock)
    token = attacks()[attack](issuer)
    with pytest.raises(BadExchange) as refused:
        tokens.verify(token)
    assert not token or token not in str(refused.value)


def test_a_jwks_that_has_secrets_is_taken_without_them(tmp_path: Path, clock: Clock) -> None:
    """A key that both sides share could be the public key of another."""
    path = tmp_path / "jwks.json"
    path.write_text('{"keys": [{"kty": "oct", "k": "c2VjcmV0", "kid": "shared"}]}')
    issuer = Issuer(tmp_path / "other.json")
    tokens = tokens_of(issuer, clock, sasl_oauthbearer_jwks_endpoint_url=path.as_uri())
    assert tokens.failed_fetches == 1
    with pytest.raises(BadExchange):
        tokens.verify(issuer.token("first"))


@pytest.mark.parametrize(
    "message",
    [b"", b"n,,", b"n,,\x01\x01", b"n,,\x01auth=Basic eDp4\x01\x01", b"p=x,,\x01auth=Bearer x\x01\x01",
     b"n,,\x01auth=Bearer x\x01", b"n,,\x01auth=Bearer \xff\x01\x01", b"n,,\x01auth=Bearer x\x01auth=Bearer y\x01\x01"],
)  # fmt: skip
def test_a_message_that_is_not_one_of_oauthbearer_is_refused(message: bytes) -> None:
    with pytest.raises(BadExchange):
        parse_bearer(message)


def test_extensions_are_passed_over() -> None:
    assert parse_bearer(b"n,,\x01auth=bearer a.b.c\x01logicalCluster=x\x01\x01") == ("", "a.b.c")
    assert parse_bearer(b"n,a=al=2Cice,\x01auth=Bearer a.b.c\x01\x01") == ("al,ice", "a.b.c")


# ---- keys


def publish_without_ids(issuer: Issuer, *names: str) -> None:
    keys = [issuer.keys[name].as_dict(private=False) for name in names]
    issuer.path.write_text(json.dumps({"keys": [{k: v for k, v in key.items() if k != "kid"} for key in keys]}))


@pytest.mark.parametrize("kid", ["first", None])
def test_keys_without_an_id_count_and_so_does_a_token_that_names_none(
    issuer: Issuer, clock: Clock, kid: str | None
) -> None:
    """RFC 7517 leaves ids to the issuer; while keys are exchanged, there are two."""
    issuer.add("second")
    issuer.add("rsa", rsa=True)
    publish_without_ids(issuer, "second", "rsa", "first")
    tokens = tokens_of(issuer, clock)
    for name, algorithm in (("first", "ES256"), ("second", "ES256"), ("rsa", "RS256")):
        assert tokens.verify(issuer.token(kid, algorithm, issuer.keys[name])).user == "alice"
    stranger = Issuer(issuer.path.with_suffix(".other")).keys["first"]
    with pytest.raises(BadExchange, match="cannot be verified"):
        tokens.verify(issuer.token(kid, "ES256", stranger))
    assert not tokens.is_due()
    clock.ahead_s = 11
    assert tokens.is_due(), "there may be a new one"
    issuer.publish()
    tokens.refresh()
    for name, algorithm in (("second", "ES256"), ("rsa", "RS256")):
        token = issuer.token(kid, algorithm, issuer.keys[name])
        if kid is None:
            assert tokens.verify(token).user == "alice"
        else:
            with pytest.raises(BadExchange):  # it names another key
                tokens.verify(token)


def test_new_keys_are_fetched_when_a_token_names_one(tmp_path: Path, clock: Clock) -> None:
    issuer = Issuer(tmp_path / "jwks.json")
    tokens = tokens_of(issuer, clock)
    issuer.add("second")
    issuer.publish()
    assert not tokens.is_due()
    with pytest.raises(BadExchange, match="'second', which is not known"):
        tokens.verify(issuer.token("second"))
    assert not tokens.is_due(), "not for each such token"
    clock.ahead_s = 11
    assert tokens.is_due()
    tokens.refresh()
    assert tokens.verify(issuer.token("second", exp=int(time.time()) + 1000)).user == "alice"
    assert not tokens.is_due()
    clock.ahead_s = 3700
    assert tokens.is_due(), "they are an hour old"


def test_keys_that_cannot_be_fetched_count_until_their_age_limit(tmp_path: Path, clock: Clock) -> None:
    issuer = Issuer(tmp_path / "jwks.json")
    token = issuer.token(exp=int(time.time()) + 10**6)
    tokens = tokens_of(issuer, clock, sasl_oauthbearer_jwks_max_age_ms=7_200_000)
    for content in (None, b"", b"{", b"[]", b'{"keys": []}', b'{"keys": [{"kty": "RSA"}]}', b"x" * (1 << 20) + b"x"):
        if content is None:
            issuer.path.unlink()
        else:
            issuer.path.write_bytes(content)
        tokens.refresh()
        assert tokens.verify(token).user == "alice"
    assert tokens.failed_fetches == 7
    clock.ahead_s = 11
    assert tokens.is_due()
    clock.ahead_s = 7000
    assert tokens.verify(token).user == "alice"
    clock.ahead_s = 7201
    with pytest.raises(BadExchange, match=r"older than sasl.oauthbearer.jwks.max.age.ms"):
        tokens.verify(token)
    issuer.publish()
    tokens.refresh()
    assert tokens.verify(token).user == "alice"


def test_a_clock_that_is_set_back_delays_no_fetch(issuer: Issuer, clock: Clock) -> None:
    steady = Clock()
    tokens = Tokens(ServerSettings.of(settings_of(issuer)), clock, steady)
    clock.ahead_s, steady.ahead_s = -86_400, 3700
    assert tokens.is_due()
    clock.ahead_s, steady.ahead_s = -86_400, 86_500
    with pytest.raises(BadExchange, match="older than"):
        tokens.verify(issuer.token())


def test_a_server_that_does_not_speak_http_has_no_keys(issuer: Issuer, clock: Clock) -> None:
    with socket.create_server(("127.0.0.1", 0)) as door:

        def answer() -> None:
            client, _ = door.accept()
            with client:
                client.recv(65536)
                client.sendall(b"220 mail.example ESMTP\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        url = f"http://127.0.0.1:{door.getsockname()[1]}/keys"
        tokens = tokens_of(issuer, clock, sasl_oauthbearer_jwks_endpoint_url=url)
        thread.join()
    assert tokens.failed_fetches == 1


@contextmanager
def web_server(respond: Callable[[http.server.BaseHTTPRequestHandler], None]) -> Iterator[str]:
    """The URL of keys on a web server that responds in that way."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            respond(self)

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/keys"
        finally:
            server.shutdown()
            thread.join()


def test_keys_may_come_by_http(issuer: Issuer, clock: Clock) -> None:
    def respond(request: http.server.BaseHTTPRequestHandler) -> None:
        request.send_response(200)
        request.end_headers()
        request.wfile.write(issuer.path.read_bytes())

    with web_server(respond) as url:
        tokens = tokens_of(issuer, clock, sasl_oauthbearer_jwks_endpoint_url=url)
    assert tokens.verify(issuer.token()).user == "alice"
    tokens.refresh()
    assert tokens.failed_fetches == 1


def test_keys_come_by_https_from_a_server_with_a_certificate_of_an_authority(
    issuer: Issuer, clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = Authority(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority.server())
    outcomes = []
    with socket.create_server(("127.0.0.1", 0)) as door:

        def answer() -> None:
            for _ in range(2):
                client, _ = door.accept()
                with suppress(OSError), context.wrap_socket(client, server_side=True) as connection:
                    connection.recv(65536)
                    connection.sendall(b"HTTP/1.0 200 OK\r\n\r\n" + issuer.path.read_bytes())

        thread = threading.Thread(target=answer)
        thread.start()
        url = f"https://localhost:{door.getsockname()[1]}/keys"
        for trusted in (None, str(authority.path)):
            if trusted is not None:
                monkeypatch.setenv("SSL_CERT_FILE", trusted)
            outcomes.append(tokens_of(issuer, clock, sasl_oauthbearer_jwks_endpoint_url=url).failed_fetches)
        thread.join()
    assert outcomes == [1, 0]


def test_a_redirect_is_not_followed(issuer: Issuer, clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    """It could lead from https to http, where everyone on the way can replace the keys."""

    def respond(request: http.server.BaseHTTPRequestHandler) -> None:
        is_first = request.path == "/keys"
        request.send_response(302 if is_first else 200)
        if is_first:
            request.send_header("Location", "/others")
        request.end_headers()
        if not is_first:
            request.wfile.write(issuer.path.read_bytes())

    with web_server(respond) as url:
        tokens = tokens_of(issuer, clock, sasl_oauthbearer_jwks_endpoint_url=url)
    assert tokens.failed_fetches == 1 and "302" in caplog.text


@pytest.mark.parametrize("is_body", [False, True])
def test_a_server_of_keys_that_sends_a_byte_now_and_then_holds_no_thread(
    issuer: Issuer, clock: Clock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, is_body: bool
) -> None:
    monkeypatch.setattr(key_download, "_LIMIT_S", 0.5)
    is_asked, is_cut = threading.Event(), threading.Event()

    def respond(request: http.server.BaseHTTPRequestHandler) -> None:
        is_asked.set()
        if is_body:
            request.send_response(200)
            request.end_headers()
        with suppress(OSError):
            for _ in range(600):
                request.wfile.write(b" ")
                time.sleep(0.05)
            return
        is_cut.set()

    with web_server(respond) as url:
        tokens = tokens_of(issuer, clock, sasl_oauthbearer_jwks_endpoint_url=url)
        for _ in range(100):
            if is_asked.is_set():
                break
            tokens.refresh()  # a busy machine took longer than that to connect
        assert is_cut.wait(PATIENCE)
    assert tokens.failed_fetches >= 1 and "it takes more than 0.5 s" in caplog.text


def test_a_server_of_keys_that_says_nothing_is_told_like_a_slow_one(
    issuer: Issuer, clock: Clock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(key_download, "_LIMIT_S", 0.2)
    monkeypatch.setattr(threading.Timer, "start", lambda _: None)  # the time-out of a read comes first
    with socket.create_server(("127.0.0.1", 0)) as listening:
        url = f"http://127.0.0.1:{listening.getsockname()[1]}/keys"
        tokens = tokens_of(issuer, clock, sasl_oauthbearer_jwks_endpoint_url=url)
    assert tokens.failed_fetches == 1 and "it takes more than 0.2 s" in caplog.text


def test_keys_that_come_unencrypted_from_elsewhere_are_warned_of(
    issuer: Issuer, clock: Clock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(Tokens, "refresh", lambda _: None)
    for url in ("http://127.0.0.1/keys", "http://localhost:81/keys", "http://[::1]/keys", "https://a.example/keys"):
        tokens_of(issuer, clock, sasl_oauthbearer_jwks_endpoint_url=url)
        assert not caplog.text, url
    tokens_of(issuer, clock, sasl_oauthbearer_jwks_endpoint_url="http://login.example/keys")
    assert "everyone on the way can replace the keys of tokens" in caplog.text


@pytest.mark.parametrize("url", ["https://ada:s3cr3t@login.example/keys", "ftp://s3cr3t@login.example"])
def test_a_url_of_keys_with_a_password_is_refused_and_not_shown(url: str) -> None:
    with pytest.raises(InvalidSetting, match="has a user or a password") as refused:
        ServerSettings.of({"sasl.oauthbearer.jwks.endpoint.url": url})
    assert "s3cr3t" not in str(refused.value)


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("sasl.oauthbearer.jwks.endpoint.url", ""),
        ("sasl.oauthbearer.jwks.endpoint.url", "/etc/passwd"),
        ("sasl.oauthbearer.expected.issuer", ""),
        ("sasl.oauthbearer.expected.audience", " , "),
        ("sasl.oauthbearer.algorithms", "HS256"),
        ("sasl.oauthbearer.algorithms", "none"),
        ("sasl.oauthbearer.algorithms", ""),
    ],
)
def test_settings_by_which_no_token_could_be_checked_are_refused(
    issuer: Issuer, clock: Clock, setting: str, value: str
) -> None:
    with pytest.raises(InvalidSetting) as refused:
        tokens_of(issuer, clock, **{setting: value})
    assert refused.value.setting == setting


# ---- a server


@pytest.fixture
def server(store: klamm.Store, issuer: Issuer) -> Iterator[Served]:
    settings: dict[str, Any] = {
        **settings_of(issuer),
        "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
        "connection.failed.authentication.delay.ms": 0,
    }
    with served(Path(store.path), **settings) as running:
        yield running


def log_in(raw: Raw, token: str) -> Any:
    assert choose(raw, "OAUTHBEARER").error_code == 0
    return authenticate(raw, bearer(token))


def test_a_client_with_a_token_is_served_as_long_as_the_token_is_valid(server: Served, issuer: Issuer) -> None:
    with server.dial() as raw:
        response = log_in(raw, issuer.token())
        assert (response.error_code, bytes(response.auth_bytes)) == (0, b"")
        assert 300_000 < response.session_lifetime_ms <= 330_000
        assert [topic.name for topic in raw.ask(METADATA, 12, topics=None).topics] == ["orders"]
        again = log_in(raw, issuer.token(exp=int(time.time()) - 30 + 60))
        assert again.error_code == 0 and again.session_lifetime_ms <= 60_000
        server.advance(60)
        with pytest.raises(ConnectionEnded):
            raw.ask(METADATA, 12, topics=None)
    assert server.broker.metrics.logins == {("OAUTHBEARER", "success"): 2}


def test_a_client_that_logs_in_again_with_the_token_of_another_is_refused(server: Served, issuer: Issuer) -> None:
    with server.dial() as raw:
        log_in(raw, issuer.token())
        assert log_in(raw, issuer.token(sub="bob")).error_code == ErrorCode.SASL_AUTHENTICATION_FAILED


def test_a_client_may_say_whom_it_wants_to_be_if_that_is_the_user_of_its_token(server: Served, issuer: Issuer) -> None:
    for identity, code in ((b"alice", 0), (b"bob", ErrorCode.SASL_AUTHENTICATION_FAILED)):
        with server.dial() as raw:
            choose(raw, "OAUTHBEARER")
            message = bearer(issuer.token()).replace(b"n,,", b"n,a=" + identity + b",", 1)
            assert authenticate(raw, message).error_code == code
    assert server.broker.metrics.logins == {("OAUTHBEARER", "success"): 1, ("OAUTHBEARER", "failure"): 1}


@pytest.mark.parametrize("attack", ["no signature", "the public key as a secret", "expired", "another audience"])
def test_a_client_with_a_wrong_token_hears_so_and_is_disconnected(
    server: Served, issuer: Issuer, attack: str, caplog: pytest.LogCaptureFixture
) -> None:
    token = attacks()[attack](issuer)
    with server.dial() as raw:
        response = log_in(raw, token)
        assert (response.error_code, bytes(response.auth_bytes)) == (0, INVALID_TOKEN)
        assert authenticate(raw, b"\x01").error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        with pytest.raises(ConnectionEnded):
            raw.receive()
    assert server.broker.metrics.logins == {("OAUTHBEARER", "failure"): 1}
    assert "login by OAUTHBEARER failed" in caplog.text and token not in caplog.text
    with server.dial() as raw:
        assert log_in(raw, token).error_code == 0
        with pytest.raises(ConnectionEnded):
            raw.ask(METADATA, 12, topics=None)


def test_a_refused_token_counts_once_also_if_the_client_leaves(
    server: Served, issuer: Issuer, caplog: pytest.LogCaptureFixture
) -> None:
    token = issuer.token(aud="bank")
    with server.dial() as raw:
        assert bytes(log_in(raw, token).auth_bytes) == INVALID_TOKEN
    failures = server.broker.metrics.logins
    until(lambda: failures.get(("OAUTHBEARER", "failure")) == 1, "it is counted")
    assert caplog.text.count("login by OAUTHBEARER failed: the token is for another audience") == 1


@pytest.mark.parametrize("mechanism", ["OAUTHBEARER", "SCRAM-SHA-256"])
def test_after_a_refused_token_nothing_else_is_tried_on_the_connection(
    server: Served, issuer: Issuer, mechanism: str
) -> None:
    with server.dial() as raw:
        assert bytes(log_in(raw, issuer.token(aud="bank")).auth_bytes) == INVALID_TOKEN
        choose(raw, mechanism)
        assert authenticate(raw, bearer(issuer.token())).error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        with pytest.raises(ConnectionEnded):
            raw.receive()
    assert server.broker.metrics.logins == {("OAUTHBEARER", "failure"): 1}


def test_a_server_fetches_keys_that_tokens_name(store: klamm.Store, tmp_path: Path) -> None:
    issuer = Issuer(tmp_path / "jwks.json")
    settings: dict[str, Any] = {**settings_of(issuer), "listeners": "SASL_PLAINTEXT://127.0.0.1:0"}
    with served(Path(store.path), **settings) as server:
        issuer.add("second")
        issuer.publish()
        tokens = server.broker.tokens
        assert tokens is not None
        tokens._tried -= 100  # as if the keys had been fetched long ago
        with server.dial() as raw:
            assert bytes(log_in(raw, issuer.token("second")).auth_bytes) == INVALID_TOKEN
        until(lambda: "second" in dict(tokens._keys), "the new key is known")
        with server.dial() as raw:
            assert bytes(log_in(raw, issuer.token("second")).auth_bytes) == b""
