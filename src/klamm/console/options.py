"""What `klamm console` was started with."""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import ip_address

from klamm.errors import InvalidSetting

__all__ = ["ConsoleOptions", "is_address", "is_every_address", "is_loopback"]


@dataclass(frozen=True, slots=True)
class ConsoleOptions:
    """Options of a console. InvalidSetting if it could be reached from other hosts without a token."""

    host: str = "127.0.0.1"
    port: int = 8080
    """0: any free one."""
    allow_changes: bool = False
    token: str | None = None
    """Visitors log in with it; None: the console serves this host only."""
    allow_hosts: tuple[str, ...] = ()
    """Names by which a proxy's visitors call it, beside its address."""

    def __post_init__(self) -> None:
        if self.token is not None and len(self.token) < 12:
            raise InvalidSetting("the token is shorter than 12 characters", setting="token", hint="use a longer one")
        if self.token is None and not is_loopback(self.host):
            raise InvalidSetting(
                f"{self.host!r} can be reached from other hosts, which needs a token",
                setting="host",
                hint="give one by --token-file FILE or $KLAMM_CONSOLE_TOKEN, or leave out --host",
            )


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
