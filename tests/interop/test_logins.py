"""Real clients log in, with each mechanism that they have; wrong passwords are refused in their own words."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

import klamm
from klamm.store.users import Users
from tests.interop.login import Login
from tests.interop.secured import CLIENTS, OPEN_METRICS, Exchange, Refused, counted
from tests.serving import Serving, serving

MECHANISMS = ["SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN"]


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    path = tmp_path_factory.mktemp("guarded") / "store"
    with klamm.open(path) as store:
        Users(store._acquired().catalog).add("alice", "wonder land=,")
    settings = [
        "listeners=SASL_PLAINTEXT://127.0.0.1:0",
        f"sasl.enabled.mechanisms={','.join(MECHANISMS)}",
        OPEN_METRICS,
    ]
    options = [word for setting in settings for word in ("--set", setting)]
    with serving(path, "--config", "/dev/null", "--metrics", "0", *options) as server:
        server.ready()
        yield server
        server.check_log()


@pytest.fixture
def address(guarded: Serving) -> str:
    return guarded.address.removeprefix("SASL_PLAINTEXT://")


@pytest.fixture
def topic(guarded: Serving, request: pytest.FixtureRequest) -> str:
    name = re.sub(r"\W", "-", request.node.name)[:200]
    with klamm.open(guarded.store) as store:
        store.topics.create(name)
    return name


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("client", CLIENTS)
def test_a_client_logs_in_sends_and_reads(
    address: str, topic: str, client: str, mechanism: str, exchange: Exchange
) -> None:
    login = Login("SASL_PLAINTEXT", mechanism, "alice", "wonder land=,")
    assert exchange(address, login, topic) == client


@pytest.mark.parametrize("client", CLIENTS)
def test_a_wrong_password_is_refused_in_the_words_of_the_client(
    guarded: Serving, address: str, topic: str, client: str, exchange: Exchange
) -> None:
    """By PLAIN, over TLS: test_tls_clients.py."""
    login = Login("SASL_PLAINTEXT", "SCRAM-SHA-512", "alice", "queen of hearts")
    refused = counted(guarded, "klamm_logins_total", mechanism="SCRAM-SHA-512", outcome="failure")
    with pytest.raises(Refused, match=r"(?i)authentication ?(error|failed|exception)"):
        exchange(address, login, topic)
    assert counted(guarded, "klamm_logins_total", mechanism="SCRAM-SHA-512", outcome="failure") > refused
