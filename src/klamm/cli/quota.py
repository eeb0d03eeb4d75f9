"""`klamm quota`: how much clients of the Kafka server may do. Works on the directory, with or without a server."""

from __future__ import annotations

from typing import Annotated

import typer

from klamm.cli.output import OutputOption
from klamm.cli.stores import CreateOption, StoreOption, check_directory, core_of, opened
from klamm.errors import InvalidSetting

__all__ = ["app"]

_HINT = "kafka-acls.sh and kafka-configs.sh change those of a cluster; of klamm serve, name its directory"

app = typer.Typer(name="quota", help="Quotas of clients of the Kafka server: set, list, remove.", no_args_is_help=True)

User = Annotated[str | None, typer.Option(metavar="NAME", help="For this user.", show_default=False)]
DefaultUser = Annotated[bool, typer.Option("--default-user", help="For users that have no quota of their own.")]
ClientId = Annotated[str | None, typer.Option(metavar="NAME", help="For this client id.", show_default=False)]
DefaultClientId = Annotated[
    bool, typer.Option("--default-client-id", help="For client ids that have no quota of their own.")
]
Ip = Annotated[str | None, typer.Option(metavar="ADDRESS", help="For this address.", show_default=False)]
DefaultIp = Annotated[bool, typer.Option("--default-ip", help="For addresses that have no quota of their own.")]


@app.command("set")
def set_quotas(
    quotas: Annotated[
        list[str],
        typer.Argument(
            metavar="NAME=VALUE...",
            help="producer_byte_rate, consumer_byte_rate, request_percentage, controller_mutation_rate;"
            " for addresses connection_creation_rate.",
            show_default=False,
        ),
    ],
    store: StoreOption = None,
    user: User = None,
    default_user: DefaultUser = False,
    client_id: ClientId = None,
    default_client_id: DefaultClientId = False,
    ip: Ip = None,
    default_ip: DefaultIp = False,
    create: CreateOption = False,
    *,
    out: OutputOption,
) -> None:
    """Set quotas of a user, a client id, both, or an address. A server that runs sees them within about a second."""
    from klamm.store.quotas import Quotas

    entity = _entity(user, default_user, client_id, default_client_id, ip, default_ip)
    values: dict[str, float | None] = {}
    for each in quotas:
        name, separator, text = each.partition("=")
        try:
            values[name] = float(text)
        except ValueError:
            separator = ""
        if not separator:
            raise InvalidSetting(f"{each!r} is invalid", hint="expected NAME=VALUE, such as producer_byte_rate=1000000")
    check_directory(store, "quota", _HINT)
    with opened(store, create=create) as events:
        Quotas(core_of(events).catalog).alter([(entity, values)])
    out.report(f"set {len(values)} quotas", {**dict(entity), **values})


@app.command("list")
def list_quotas(store: StoreOption = None, *, out: OutputOption) -> None:
    """List all quotas. A name that is `<default>` stands for all that have no quota of their own."""
    from klamm.store.quotas import Quotas

    check_directory(store, "quota", _HINT)
    with opened(store, looks=True) as events:
        rows = [
            {**{kind: "<default>" if part is None else part for kind, part in entity}, "quota": name, "value": value}
            for entity, values in Quotas(core_of(events).catalog).all().items()
            for name, value in values.items()
        ]
    columns = ("user", "client-id", "ip", "quota", "value")
    out.print_rows([{name: row.get(name) for name in columns} for row in rows], empty="no quotas yet")


@app.command()
def remove(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NAME...]", help="Which quotas. [default: all of it]", show_default=False),
    ] = None,
    store: StoreOption = None,
    user: User = None,
    default_user: DefaultUser = False,
    client_id: ClientId = None,
    default_client_id: DefaultClientId = False,
    ip: Ip = None,
    default_ip: DefaultIp = False,
    *,
    out: OutputOption,
) -> None:
    """Remove quotas of a user, a client id, both, or an address."""
    from klamm.store.quotas import Quotas

    entity = _entity(user, default_user, client_id, default_client_id, ip, default_ip)
    check_directory(store, "quota", _HINT)
    with opened(store) as events:
        quotas = Quotas(core_of(events).catalog)
        existing = quotas.all().get(entity, {})
        for name in names or ():
            if name not in existing:
                raise InvalidSetting(f"there is no such quota: {name}", hint="klamm quota list shows all")
        if not existing:
            raise InvalidSetting("there is no such quota", hint="klamm quota list shows all")
        quotas.alter([(entity, dict.fromkeys(names or existing))])
    out.report(f"removed {len(names or existing)} quotas", {**dict(entity), "removed": list(names or existing)})


def _entity(
    user: str | None,
    default_user: bool,
    client_id: str | None,
    default_client_id: bool,
    ip: str | None,
    default_ip: bool,
) -> tuple[tuple[str, str | None], ...]:
    from klamm.store.quotas import make_entity

    parts: list[tuple[str, str | None]] = []
    for kind, name, is_default in (
        ("user", user, default_user),
        ("client-id", client_id, default_client_id),
        ("ip", ip, default_ip),
    ):
        if name is not None and is_default:
            raise InvalidSetting(f"--{kind} and --default-{kind} exclude each other")
        if name is not None or is_default:
            parts.append((kind, name))
    if not parts:
        raise InvalidSetting(
            "no user, client id or address is named",
            hint="expected --user, --client-id, both, or --ip; or --default-user …",
        )
    return make_entity(parts)
