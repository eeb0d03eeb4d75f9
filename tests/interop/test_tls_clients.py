"""Real clients over TLS: with a password, with a certificate; foreign and expired certificates are refused."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import klamm
from klamm.store.users import Users
from tests.interop.login import Login
from tests.interop.secured import CLIENTS, OPEN_METRICS, Exchange, Refused, counted
from tests.kafka.authorities import Authority
from tests.serving import Serving, serving

MECHANISMS = ["SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN"]


WORDS = {
    "confluent-kafka": r"alert|certificate",
    "kcat": r"alert|certificate|SSL",
    "kafka-python": r"(?i)ssl|tls|certificate",
    "aiokafka": r"Connection at \S+ closed",  # which does not show the alert
    "java": r"SSL handshake failed|SslAuthenticationException",
}
"""What a client says of a server that does not like its certificate."""


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory, authority: Authority) -> Iterator[Serving]:
    path = tmp_path_factory.mktemp("guarded") / "store"
    with klamm.open(path) as store:
        Users(store._acquired().catalog).add("alice", "wonderland")
    settings = [
        "listeners=SASL_SSL://127.0.0.1:0,SSL://127.0.0.1:0",
        f"sasl.enabled.mechanisms={','.join(MECHANISMS)}",
        f"ssl.keystore.location={authority.path.with_name('server.pem')}",
        f"ssl.truststore.location={authority.path}",
        "ssl.client.auth=required",
        OPEN_METRICS,
    ]
    options = [word for setting in settings for word in ("--set", setting)]
    with serving(path, "--config", "/dev/null", "--metrics", "0", *options) as server:
        server.ready()
        yield server
        server.check_log()


def address_of(server: Serving, name: str) -> str:
    """Return the address of the listener of that name; it is called as the certificate has it."""
    (found,) = re.findall(rf"(?:^|,){name}://127\.0\.0\.1:(\d+)", server.address)
    return f"localhost:{found}"


@pytest.fixture
def topic(guarded: Serving, request: pytest.FixtureRequest) -> str:
    name = re.sub(r"\W", "-", request.node.name)[:200]
    with klamm.open(guarded.store) as store:
        store.topics.create(name)
    return name


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("client", CLIENTS)
def test_a_client_logs_in_over_tls_sends_and_reads(
    guarded: Serving, authority: Authority, topic: str, client: str, mechanism: str, exchange: Exchange
) -> None:
    login = Login("SASL_SSL", mechanism, "alice", "wonderland", authority.path)
    assert exchange(address_of(guarded, "SASL_SSL"), login, topic) == client


@pytest.mark.parametrize("client", CLIENTS)
def test_a_client_with_a_certificate_sends_and_reads(
    guarded: Serving, authority: Authority, topic: str, client: str, exchange: Exchange
) -> None:
    login = Login("SSL", authority=authority.path, certificate=authority.client("alice"))
    assert exchange(address_of(guarded, "SSL"), login, topic) == client


@pytest.mark.parametrize("certificate", ["foreign", "expired", "none"])
@pytest.mark.parametrize("client", CLIENTS)
def test_a_client_with_a_wrong_certificate_is_refused_in_its_own_words(
    guarded: Serving,
    authority: Authority,
    topic: str,
    client: str,
    certificate: str,
    exchange: Exchange,
    tmp_path: Path,
) -> None:
    made = {
        "foreign": lambda: Authority(tmp_path, "foreign").client("alice"),
        "expired": lambda: authority.client("late", is_expired=True),
        "none": lambda: None,
    }[certificate]()
    login = Login("SSL", authority=authority.path, certificate=made)
    refused = counted(guarded, "klamm_tls_handshakes_total", outcome="failure")
    with pytest.raises(Refused, match=WORDS[client]):
        exchange(address_of(guarded, "SSL"), login, topic)
    assert counted(guarded, "klamm_tls_handshakes_total", outcome="failure") > refused


@pytest.mark.parametrize("client", CLIENTS)
def test_a_wrong_password_over_tls_is_refused_in_the_words_of_the_client(
    guarded: Serving, authority: Authority, topic: str, client: str, exchange: Exchange
) -> None:
    login = Login("SASL_SSL", "PLAIN", "alice", "queen of hearts", authority.path)
    refused = counted(guarded, "klamm_logins_total", mechanism="PLAIN", outcome="failure")
    with pytest.raises(Refused, match=r"(?i)authentication ?(error|failed|exception)"):
        exchange(address_of(guarded, "SASL_SSL"), login, topic)
    assert counted(guarded, "klamm_logins_total", mechanism="PLAIN", outcome="failure") > refused


@pytest.mark.parametrize("client", CLIENTS)
def test_a_client_that_trusts_another_authority_refuses_the_server(
    guarded: Serving, topic: str, client: str, exchange: Exchange, tmp_path: Path
) -> None:
    login = Login("SASL_SSL", "PLAIN", "alice", "wonderland", Authority(tmp_path, "foreign").path)
    with pytest.raises(Refused, match=r"(?i)ssl|certificate|authentication"):
        exchange(address_of(guarded, "SASL_SSL"), login, topic)
