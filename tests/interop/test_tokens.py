"""Real clients log in by OAUTHBEARER; tokens that are not right are refused in their own words."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import klamm
from tests.interop.login import Login
from tests.interop.secured import CLIENTS, Exchange, Refused
from tests.kafka.authorities import Authority
from tests.kafka.connect import Served, served
from tests.kafka.tokens import Issuer, settings_of, token_endpoint
from tests.procs import until


@pytest.fixture(scope="module")
def issuer(tmp_path_factory: pytest.TempPathFactory) -> Issuer:
    return Issuer(tmp_path_factory.mktemp("issuer") / "jwks.json")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, issuer: Issuer, authority: Authority) -> Iterator[Served]:
    path = tmp_path_factory.mktemp("tokens") / "store"
    with klamm.open(path) as store:
        store.topics.create("orders")
    settings: dict[str, Any] = {
        **settings_of(issuer),
        "listeners": "SASL_PLAINTEXT://127.0.0.1:0,SASL_SSL://127.0.0.1:0",
        "ssl.keystore.location": str(authority.path.with_name("server.pem")),
    }
    with served(path, **settings) as running:
        yield running


WITH_TOKENS = [client for client in CLIENTS if client != "kcat"]
"""kcat has tokens only where it was built with libcurl, which Debian's is not."""
WORDS = {
    "confluent-kafka": r"invalid_token|[Aa]uthentication",
    "kafka-python": r"SaslAuthenticationFailed|invalid_token",
    "aiokafka": r"Connection at \S+ closed",  # it does not look at what the server says
    "java": r"SaslAuthenticationException|invalid_token",
}


def login_of(server: Served, authority: Authority, protocol: str, token: str, url: str) -> tuple[str, Login]:
    """Return the address of the listener, and what a client brings."""
    is_tls = protocol == "SASL_SSL"
    path = authority.path if is_tls else None
    return (
        f"localhost:{server.server.endpoints[is_tls].port}",
        Login(protocol, "OAUTHBEARER", authority=path, token=token, token_url=url),
    )


@pytest.mark.parametrize("protocol", ["SASL_PLAINTEXT", "SASL_SSL"])
@pytest.mark.parametrize("client", WITH_TOKENS)
def test_a_client_logs_in_by_a_token_sends_and_reads(
    server: Served, issuer: Issuer, authority: Authority, client: str, protocol: str, exchange: Exchange
) -> None:
    topic = f"{client}-{protocol.lower()}"
    with klamm.open(server.broker.core.path) as store:
        store.topics.create(topic)
    with token_endpoint(issuer.token) as url:
        address, login = login_of(server, authority, protocol, issuer.token(), url)
        assert exchange(address, login, topic) == client


@pytest.mark.parametrize("client", WITH_TOKENS)
def test_a_token_for_another_audience_is_refused_in_the_words_of_the_client(
    server: Served, issuer: Issuer, authority: Authority, client: str, exchange: Exchange
) -> None:
    logins = server.broker.metrics.logins
    refused = logins.get(("OAUTHBEARER", "failure"), 0)
    with token_endpoint(lambda: issuer.token(aud="bank")) as url:
        address, login = login_of(server, authority, "SASL_SSL", issuer.token(aud="bank"), url)
        with pytest.raises(Refused, match=WORDS[client]):
            exchange(address, login, "orders")
    until(lambda: logins.get(("OAUTHBEARER", "failure"), 0) > refused, "it is counted")


def librdkafka(server: Served, make_token: Callable[[], str]) -> dict[str, Any]:
    return {
        "bootstrap.servers": server.address,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanisms": "OAUTHBEARER",
        "oauth_cb": lambda _: (make_token(), time.time() + 300),
        "log_level": 0,
    }


@pytest.mark.parametrize("attack", ["expired", "another audience", "no signature", "the public key as a secret"])
def test_confluent_kafka_says_that_its_token_is_refused(server: Served, issuer: Issuer, attack: str) -> None:
    from confluent_kafka import Producer

    tokens = {
        "expired": lambda: issuer.token(exp=int(time.time()) - 100),
        "another audience": lambda: issuer.token(aud="bank"),
        "no signature": issuer.unsigned,
        "the public key as a secret": issuer.signed_with_the_public_key,
    }
    errors: list[Any] = []
    producer = Producer({**librdkafka(server, tokens[attack]), "error_cb": errors.append})
    for _ in range(300):
        producer.poll(0.1)
        if errors:
            break
    assert any(each.name() == "_AUTHENTICATION" for each in errors), errors


def test_a_client_logs_in_again_before_its_token_expires(tmp_path: Path, issuer: Issuer) -> None:
    """KIP-368, as librdkafka does it: the session's lifetime is in the response to its login."""
    from confluent_kafka import Producer

    with klamm.open(tmp_path / "store") as store:
        store.topics.create("orders")
    settings: dict[str, Any] = {
        **settings_of(issuer),
        "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
        "connections.max.reauth.ms": 1000,
    }
    with served(tmp_path / "store", **settings) as server:
        producer = Producer(librdkafka(server, issuer.token))
        errors: list[Any] = []
        logins = server.broker.metrics.logins
        deadline = time.monotonic() + 30
        while logins.get(("OAUTHBEARER", "success"), 0) < 5 and time.monotonic() < deadline:
            producer.produce("orders", b"x", on_delivery=lambda error, _: errors.append(error))
            producer.flush(5)
            time.sleep(0.05)
        assert logins[("OAUTHBEARER", "success")] >= 5
        assert errors and not any(errors)
        assert server.broker.metrics.unauthenticated_requests == 0
