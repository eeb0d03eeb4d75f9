"""What a client brings to log in, and what it logs when it is refused. Little is imported here: for processes, too."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any, NamedTuple

__all__ = ["Lines", "Login"]

_BEARER = "org.apache.kafka.common.security.oauthbearer"


class Login(NamedTuple):
    """What a client brings, in the words of librdkafka and Java."""

    protocol: str
    mechanism: str = ""
    user: str = ""
    password: str = ""
    authority: Path | None = None
    certificate: Path | None = None
    """Of the client: certificate and key in one file."""
    token: str = ""
    """For OAUTHBEARER."""
    token_url: str = ""
    """Where clients get the token that take none by hand."""

    @property
    def librdkafka(self) -> dict[str, str]:
        settings = {"security.protocol": self.protocol}
        if self.token_url:
            settings |= {
                "sasl.mechanisms": self.mechanism,
                "sasl.oauthbearer.method": "oidc",
                "sasl.oauthbearer.client.id": "klamm",
                "sasl.oauthbearer.client.secret": "klamm",
                "sasl.oauthbearer.token.endpoint.url": self.token_url,
            }
        elif self.mechanism:
            settings |= {
                "sasl.mechanisms": self.mechanism,
                "sasl.username": self.user,
                "sasl.password": self.password,
            }
        if self.authority:
            settings["ssl.ca.location"] = str(self.authority)
        if self.certificate:
            settings |= {
                "ssl.certificate.location": str(self.certificate),
                "ssl.key.location": str(self.certificate),
            }
        return settings

    @property
    def java(self) -> str:
        settings = {"security.protocol": self.protocol}
        if self.token_url:
            settings |= {
                "sasl.mechanism": self.mechanism,
                "sasl.oauthbearer.token.endpoint.url": self.token_url,
                "sasl.login.callback.handler.class": f"{_BEARER}.OAuthBearerLoginCallbackHandler",
                "sasl.jaas.config": f'{_BEARER}.OAuthBearerLoginModule required clientId="x" clientSecret="x";',
            }
        elif self.mechanism:
            kind = "plain.Plain" if self.mechanism == "PLAIN" else "scram.Scram"
            settings["sasl.mechanism"] = self.mechanism
            settings["sasl.jaas.config"] = (
                f"org.apache.kafka.common.security.{kind}LoginModule required"
                f' username="{self.user}" password="{self.password}";'
            )
        if self.authority:
            settings |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(self.authority)}
        if self.certificate:
            settings |= {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(self.certificate)}
        return "".join(f"{name}={value}\n" for name, value in settings.items())

    def python(self) -> dict[str, Any]:
        """For kafka-python and aiokafka."""
        settings: dict[str, Any] = {"security_protocol": self.protocol}
        if self.token:
            settings["sasl_mechanism"] = self.mechanism  # the provider of tokens is each library's own
        elif self.mechanism:
            settings |= {
                "sasl_mechanism": self.mechanism,
                "sasl_plain_username": self.user,
                "sasl_plain_password": self.password,
            }
        if self.authority:
            import ssl

            context = ssl.create_default_context(cafile=str(self.authority))
            if self.certificate:
                context.load_cert_chain(self.certificate)
            settings["ssl_context"] = context
        return settings


class Lines(logging.Handler):
    """What a client logs: kafka-python and aiokafka raise that there is no broker, and log why."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.lines: list[str] = []
        self._logger = logging.getLogger(name)

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())

    def __enter__(self) -> list[str]:
        self._logger.addHandler(self)
        return self.lines

    def __exit__(self, *_: object) -> None:
        self._logger.removeHandler(self)
