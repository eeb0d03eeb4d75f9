"""`listeners` and its companions: what they mean, and what is refused."""

from __future__ import annotations

import pytest

from klamm.errors import InvalidSetting
from klamm.kafka.security.endpoints import PROTOCOLS, Endpoint, endpoints_of, is_guarded, strictest
from klamm.kafka.service import warning_about
from klamm.kafka.settings import STANDARD_AUTHORIZER, ServerSettings


def endpoints(**settings: str | int) -> list[Endpoint]:
    return list(endpoints_of(ServerSettings.of(settings)))


def test_without_listeners_there_is_one_without_security() -> None:
    assert endpoints() == [Endpoint("", "PLAINTEXT", "127.0.0.1", 9092)]
    made = endpoints(host="0.0.0.0", kafka=7, advertise="example.com:8")
    assert made == [Endpoint("", "PLAINTEXT", "0.0.0.0", 7, ("example.com", 8))]


def test_listeners_have_names_protocols_and_addresses() -> None:
    assert endpoints(
        listeners="PLAINTEXT://:1, SASL_SSL://[::]:2,INSIDE://10.0.0.1:0",
        listener_security_protocol_map="INSIDE:SASL_PLAINTEXT, PLAINTEXT:SSL",
        advertised_listeners="INSIDE://[::1]:9",
    ) == [
        Endpoint("PLAINTEXT", "SSL", "127.0.0.1", 1),
        Endpoint("SASL_SSL", "SASL_SSL", "::", 2),
        Endpoint("INSIDE", "SASL_PLAINTEXT", "10.0.0.1", 0, ("::1", 9)),
    ]


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"listeners": "9092"}, "listeners: '9092' is invalid"),
        ({"listeners": "SSL://host"}, "listeners"),
        ({"listeners": "SSL://host:65536"}, "listeners"),
        ({"listeners": "SSL://a:1,SSL://b:2"}, "SSL is listed twice"),
        ({"listeners": "SSL://a:1,PLAINTEXT://a:1"}, "port 1 is used twice"),
        ({"listeners": "INSIDE://a:1"}, "INSIDE is not a security protocol"),
        ({"listener.security.protocol.map": "INSIDE"}, "listener.security.protocol.map"),
        ({"listener.security.protocol.map": "INSIDE:TLS"}, "listener.security.protocol.map"),
        ({"advertised.listeners": "SSL://a:1"}, "advertised.listeners: is set, and listeners is not"),
        ({"listeners": "SSL://a:1", "advertised.listeners": "SASL_SSL://a:1"}, "SASL_SSL is not in listeners"),
        ({"listeners": "SSL://a:1", "advertised.listeners": "SSL://:1"}, "advertised.listeners"),
        ({"listeners": "SSL://a:1", "advertise": "a:1"}, "advertise: is for a server without listeners"),
        ({"sasl.enabled.mechanisms": "GSSAPI"}, "no mechanism 'GSSAPI'"),
        ({"sasl.enabled.mechanisms": " , "}, "sasl.enabled.mechanisms: is empty"),
        ({"ssl.client.auth": "maybe"}, "ssl.client.auth"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(settings: dict[str, str], named: str) -> None:
    with pytest.raises(InvalidSetting) as refused:
        ServerSettings.of(settings)
    assert named in str(refused.value)


@pytest.mark.parametrize(
    ("protocols", "client_auth", "expected"),
    [
        ("PLAINTEXT,SSL", "none", "SSL"),
        ("SSL,SASL_PLAINTEXT", "requested", "SASL_PLAINTEXT"),
        ("SASL_PLAINTEXT,SSL", "required", "SSL"),
        ("SSL,SASL_SSL", "required", "SSL"),
        ("SASL_PLAINTEXT,PLAINTEXT,SASL_SSL", "none", "SASL_SSL"),
    ],
)
def test_the_strictest_listener_is_the_one_where_clients_need_most(
    protocols: str, client_auth: str, expected: str
) -> None:
    listeners = ",".join(f"{each}://h:{port}" for port, each in enumerate(protocols.split(",")))
    settings = ServerSettings.of({"listeners": listeners, "ssl.client.auth": client_auth})
    assert strictest(endpoints_of(settings), settings).protocol == expected
    assert is_guarded(settings) is (expected.startswith("SASL") or client_auth == "required")


@pytest.mark.parametrize("prefix", ["listener.name.internal.", "listener.name.sasl_ssl.", "listener_name_internal_"])
def test_settings_of_one_listener_are_refused_with_what_to_do(prefix: str) -> None:
    with pytest.raises(InvalidSetting, match="a listener has no settings of its own") as refused:
        ServerSettings.of({f"{prefix}ssl.client.auth": "required"})
    if prefix.endswith("."):
        assert "set ssl.client.auth without listener.name" in str(refused.value.hint)


def test_with_an_authorizer_strangers_have_the_rights_of_anonymous() -> None:
    settings = ServerSettings.of({"authorizer.class.name": STANDARD_AUTHORIZER})
    whys = {each: warning_about(Endpoint(each, each, "0.0.0.0", 1), settings) for each in PROTOCOLS}
    assert [each for each, why in whys.items() if "User:ANONYMOUS" in why] == ["PLAINTEXT", "SSL"]
    assert "no encryption" in whys["PLAINTEXT"] and "no encryption" in whys["SASL_PLAINTEXT"] and not whys["SASL_SSL"]


@pytest.mark.parametrize(
    ("protocol", "client_auth", "words"),
    [
        ("PLAINTEXT", "none", "no authentication and no encryption"),
        ("SASL_PLAINTEXT", "none", "no encryption"),
        ("SSL", "none", "need no certificate"),
        ("SSL", "requested", "need no certificate"),
        ("SSL", "required", ""),
        ("SASL_SSL", "none", ""),
    ],
)
def test_a_listener_that_lets_strangers_in_or_be_read_is_warned_of(protocol: str, client_auth: str, words: str) -> None:
    settings = ServerSettings.of({"ssl.client.auth": client_auth})
    why = warning_about(Endpoint(protocol, protocol, "0.0.0.0", 1), settings)
    assert (words in why) if words else not why
