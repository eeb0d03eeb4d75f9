"""The address of a server, and how to log in there: options, spelled as Kafka's clients spell them.

    server                                 host:9092, or several with commas: the first that answers is used
    security.protocol                      PLAINTEXT (default), SSL, SASL_PLAINTEXT, SASL_SSL
    sasl.mechanism                         PLAIN, SCRAM-SHA-256, SCRAM-SHA-512
    sasl.username, sasl.password
    ssl.ca.location                        certificates to trust, a file; without it those of the system
    ssl.certificate.location               of the client, for a server that wants one
    ssl.key.location, ssl.key.password     its key, if it is in a file of its own or encrypted
    ssl.endpoint.identification.algorithm  https (default): the certificate has to name the host; none: any name will do

Files are read where they are needed: by the driver and by each task.

Where one string names a store, as for a pipeline, the options stand behind the address, as `klamm.open` has them:
klamm://host:9092?security.protocol=SASL_SSL&sasl.mechanism=…; in a value, %2B is a plus sign, and %26 an ampersand.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field

from klamm.errors import InvalidSetting
from klamm.store.scram import MECHANISMS

__all__ = ["SECURITY_OPTIONS", "SERVER", "ServerAddress"]

SERVER = "server"
SECURITY_OPTIONS = (
    "security.protocol",
    "sasl.mechanism",
    "sasl.username",
    "sasl.password",
    "ssl.ca.location",
    "ssl.certificate.location",
    "ssl.key.location",
    "ssl.key.password",
    "ssl.endpoint.identification.algorithm",
)

_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_MECHANISMS = ("PLAIN", *MECHANISMS)
_HOST = re.compile(r"(?:\[(?P<v6>[0-9A-Fa-f:.]+)\]|(?P<name>[^\s:/\[\]]+)):(?P<port>\d{1,5})")


@dataclass(frozen=True)
class ServerAddress:
    """The address of a server, and what a client needs to log in. Goes to tasks."""

    hosts: tuple[tuple[str, int], ...]
    protocol: str = "PLAINTEXT"
    mechanism: str | None = None
    user: str = ""
    password: str = field(default="", repr=False)
    ca_location: str | None = None
    certificate: str | None = None
    key: str | None = None
    key_password: str | None = field(default=None, repr=False)
    checks_host: bool = True

    def __str__(self) -> str:
        return "klamm://" + ",".join(spelled(*each) for each in self.hosts)

    @property
    def uses_tls(self) -> bool:
        return self.protocol.endswith("SSL")

    @property
    def uses_sasl(self) -> bool:
        return self.protocol.startswith("SASL_")

    @staticmethod
    def parse(options: Mapping[str, str]) -> ServerAddress:
        """Return the address that options name. InvalidSetting, which shows no password, if they do not fit."""
        protocol = _chosen(options, "security.protocol", _PROTOCOLS, _PROTOCOLS[0])
        uses_tls, uses_sasl = protocol.endswith("SSL"), protocol.startswith("SASL_")
        for name in SECURITY_OPTIONS:
            is_used = uses_tls if name.startswith("ssl.") else uses_sasl if name.startswith("sasl.") else True
            if name in options and not is_used:
                wanted = "SSL or SASL_SSL" if name.startswith("ssl.") else "SASL_SSL or SASL_PLAINTEXT"
                raise InvalidSetting(
                    f"{name}: is not for security.protocol={protocol}", hint=f"give security.protocol={wanted}"
                )
        mechanism = None
        if uses_sasl:
            mechanism = _chosen(options, "sasl.mechanism", _MECHANISMS, None)
            for name in ("sasl.username", "sasl.password"):
                if not options.get(name):
                    raise InvalidSetting(f"{name}: is missing", hint=f"security.protocol={protocol} needs it")
        if "ssl.key.location" in options and "ssl.certificate.location" not in options:
            raise InvalidSetting("ssl.key.location: has no certificate", hint="give ssl.certificate.location, too")
        if "ssl.key.password" in options and "ssl.certificate.location" not in options:
            raise InvalidSetting("ssl.key.password: has no certificate", hint="give ssl.certificate.location, too")
        identification = options.get("ssl.endpoint.identification.algorithm", "https").strip().lower()
        if identification not in ("https", "none", ""):
            raise InvalidSetting(
                f"ssl.endpoint.identification.algorithm: {identification!r} is invalid", hint="expected https or none"
            )
        return ServerAddress(
            hosts=_hosts(options[SERVER]),
            protocol=protocol,
            mechanism=mechanism,
            user=options.get("sasl.username", ""),
            password=options.get("sasl.password", ""),
            ca_location=options.get("ssl.ca.location"),
            certificate=options.get("ssl.certificate.location"),
            key=options.get("ssl.key.location"),
            key_password=options.get("ssl.key.password"),
            checks_host=identification == "https",
        )

    def tls(self) -> ssl.SSLContext:
        """Return what a connection begins with. InvalidSetting for a file that cannot be used on this machine."""
        name = "ssl.ca.location"
        try:
            context = ssl.create_default_context(cafile=self.ca_location)
            context.check_hostname = self.checks_host
            if self.certificate is not None:
                name = "ssl.certificate.location"
                context.load_cert_chain(self.certificate, self.key, password=self.key_password or _no_password)
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
            files = ", ".join(filter(None, (self.certificate, self.key))) if self.certificate else self.ca_location
            raise InvalidSetting(
                f"{name}: {files if name != 'ssl.ca.location' else self.ca_location}: {_reason(error)}",
                hint="the files have to be where the driver and the tasks run, as PEM",
            ) from None
        return context


def spelled(host: str, port: int) -> str:
    """Return host:port, as it is written."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _no_password() -> str:
    raise ValueError("the key is encrypted, and ssl.key.password is not given")


def _reason(error: OSError | ValueError) -> str:
    return str((error.strerror if isinstance(error, OSError) else None) or error)


def _hosts(text: str) -> tuple[tuple[str, int], ...]:
    hosts = []
    for word in filter(None, (part.strip() for part in text.split(","))):
        found = _HOST.fullmatch(word)
        if found is None or not 0 < int(found["port"]) < 1 << 16:
            raise InvalidSetting(f"server: {word!r} is invalid", hint="expected host:9092, or several with commas")
        hosts.append((found["v6"] or found["name"], int(found["port"])))
    if not hosts:
        raise InvalidSetting("server: is empty", hint="expected host:9092, or several with commas")
    return tuple(hosts)


def _chosen(options: Mapping[str, str], name: str, choices: tuple[str, ...], default: str | None) -> str:
    text = options.get(name, default or "").strip().upper()
    if text not in choices:
        problem = f"{name}: {options[name]!r} is invalid" if name in options else f"{name}: is missing"
        raise InvalidSetting(problem, hint=f"expected {', '.join(choices[:-1])} or {choices[-1]}")
    return text
