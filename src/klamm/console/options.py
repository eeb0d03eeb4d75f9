"""The options that `klamm console` was started with."""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import ip_address

from klamm.console.mask import Mask
from klamm.errors import InvalidSetting

__all__ = ["SERVER_TOKEN", "VISITOR_TOKEN", "ConsoleOptions", "is_address", "is_every_address", "is_loopback"]

SERVER_TOKEN = "KLAMM_SERVER_TOKEN"
"""The environment variable with the token for the metrics port of a server."""
VISITOR_TOKEN = "KLAMM_CONSOLE_TOKEN"
"""The environment variable with the token that visitors log in with."""


@dataclass(frozen=True, slots=True)
class ConsoleOptions:
    """Options of a console. InvalidSetting if it could be reached from other hosts without a token."""

    host: str = "127.0.0.1"
    port: int = 8080
    """0: any free one."""
    allow_changes: bool = False
    token: str | None = None
    """Visitors log in with it; None: the console serves this host only, or users of the store."""
    allow_hosts: tuple[str, ...] = ()
    """Names by which a proxy's visitors call it, beside its address."""
    mask: tuple[str, ...] = ()
    """Fields of JSON that are not shown; see mask.py."""
    record: bool = False
    """Whether the history of groups is written into the store; see history.py."""
    server: str = ""
    """URL of the metrics port of the Kafka server, whose connections are shown."""
    server_token: str = ""
    """What opens that port, if its server has logins; a login as Bearer."""
    has_users: bool = False
    """Whether visitors log in as users of the store, with their passwords; see passwords.py."""

    def __post_init__(self) -> None:
        Mask(self.mask)
        if self.token is not None and len(self.token) < 12:
            raise InvalidSetting("the token is shorter than 12 characters", setting="token", hint="use a longer one")
        if not self.needs_login and not is_loopback(self.host):
            raise InvalidSetting(
                f"{self.host!r} can be reached from other hosts, which needs a token, or users of the store",
                setting="host",
                hint="give one by --token-file FILE or $KLAMM_CONSOLE_TOKEN, make a user by klamm user add, or leave"
                " out --host",
            )

    @property
    def needs_login(self) -> bool:
        return self.token is not None or self.has_users


def is_address(host: str) -> bool:
    """Return whether it is an address, not a name."""
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def is_every_address(host: str) -> bool:
    """Return whether it stands for all addresses of this host: 0.0.0.0 or ::."""
    return is_address(host) and ip_address(host).is_unspecified


def is_loopback(host: str) -> bool:
    """Return whether only this host can reach that address."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
