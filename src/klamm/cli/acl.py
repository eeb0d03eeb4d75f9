"""`klamm acl`: what users of the Kafka server of a store may do. Works on the directory, with or without a server.

    klamm acl add alice read orders
    klamm acl add alice read --type group --prefixed billing-
    klamm acl explain alice read orders

ACLs count where the server runs with `authorizer.class.name`; what they mean is in store/acl_index.py.
"""

from __future__ import annotations

import shlex
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from klamm.cli.output import OutputOption, confirm, count_of
from klamm.cli.stores import CreateOption, StoreOption, check_directory, core_of, opened
from klamm.errors import InvalidSetting
from klamm.store.names import nearest

if TYPE_CHECKING:
    from klamm.store.acl import Acl, Operation, ResourceType

__all__ = ["app"]

_HINT = "kafka-acls.sh and kafka-configs.sh change those of a cluster; of klamm serve, name its directory"

app = typer.Typer(
    name="acl", help="Rights of users of the Kafka server: add, list, remove, explain.", no_args_is_help=True
)

User = Annotated[
    str, typer.Argument(metavar="USER", help="The user; '*' is everyone, User:alice is alice.", show_default=False)
]
Operations = Annotated[
    str,
    typer.Argument(
        metavar="OPERATION", help="read, write, create, … or all; several with commas between.", show_default=False
    ),
]
Name = Annotated[
    str | None,
    typer.Argument(metavar="[NAME]", help="The resource; '*' is all of its type. [default: the cluster]"),
]
Type = Annotated[
    str, typer.Option("--type", "-t", metavar="TYPE", help="topic, group, cluster, transactional-id, user.")
]
Prefixed = Annotated[bool, typer.Option("--prefixed", help="NAME is how names begin.")]
Deny = Annotated[bool, typer.Option("--deny", help="Deny it: that wins over all that is allowed.")]
Host = Annotated[str, typer.Option(metavar="ADDRESS", help="The address of the client; '*' is all of them.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]


@app.command()
def add(
    user: User,
    operation: Operations,
    name: Name = None,
    store: StoreOption = None,
    kind: Type = "topic",
    prefixed: Prefixed = False,
    deny: Deny = False,
    host: Host = "*",
    create: CreateOption = False,
    *,
    out: OutputOption,
) -> None:
    """Allow a user to do something, or deny it. A server that runs heeds it with the next request."""
    from klamm.store.acl import Acl, PatternType, Permission, validate_acl
    from klamm.store.acls import Acls

    resource_type, resource_name = _resource(kind, name)
    acls = [
        validate_acl(
            Acl(
                resource_type,
                resource_name,
                PatternType.PREFIXED if prefixed else PatternType.LITERAL,
                _principal(user),
                host,
                each,
                Permission.DENY if deny else Permission.ALLOW,
            )
        )
        for each in _operations(operation, resource_type)
    ]
    check_directory(store, "acl", _HINT)
    with opened(store, create=create) as events:
        count = Acls(core_of(events).catalog).add(acls)
    what = f"added {count_of(count, 'rule')}" if count else "nothing to add: there is such a rule"
    out.report(what, {"added": count, "rules": [_row(acl) for acl in acls]})


@app.command("list")
def list_acls(
    user: Annotated[str | None, typer.Argument(metavar="[USER]", help="Only rules of this user.")] = None,
    store: StoreOption = None,
    kind: Annotated[str | None, typer.Option("--type", "-t", metavar="TYPE", help="Only of this type.")] = None,
    name: Annotated[
        str | None, typer.Option("--name", metavar="NAME", help="Only rules that are for a resource of this name.")
    ] = None,
    *,
    out: OutputOption,
) -> None:
    """List rules, by resource."""
    from klamm.store.acl import AclFilter, PatternType, ResourceType
    from klamm.store.acls import Acls

    chosen = AclFilter(
        resource_type=ResourceType.ANY if kind is None else _type(kind),
        resource_name=name,
        pattern_type=PatternType.MATCH,
        principal=None if user is None else _principal(user),
    )
    check_directory(store, "acl", _HINT)
    with opened(store, looks=True) as events:
        rows = [_row(acl) for acl in Acls(core_of(events).catalog).find(chosen)]
    out.print_rows(rows, empty="no rules: klamm acl add makes one")


@app.command()
def remove(
    user: User,
    operation: Annotated[
        str | None,
        typer.Argument(metavar="[OPERATION]", help="read, write, …; several with commas between. [default: any]"),
    ] = None,
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="As the rule has it. [default: any]")] = None,
    store: StoreOption = None,
    kind: Annotated[str | None, typer.Option("--type", "-t", metavar="TYPE", help="Only of this type.")] = None,
    yes: Yes = False,
    *,
    out: OutputOption,
) -> None:
    """Remove rules of a user, as they are listed. A server that runs heeds it with the next request."""
    from klamm.store.acl import AclFilter, Operation, ResourceType
    from klamm.store.acls import Acls

    resource_type = ResourceType.ANY if kind is None else _type(kind)
    operations = [Operation.ANY] if operation is None else _operations(operation, resource_type)
    filters = [
        AclFilter(resource_type, name, principal=_principal(user), operation=each) for each in dict.fromkeys(operations)
    ]
    check_directory(store, "acl", _HINT)
    with opened(store) as events:
        acls = Acls(core_of(events).catalog)
        doomed = [acl for each in filters for acl in acls.find(each)]
        if not doomed:
            raise InvalidSetting("acl: there is no such rule", hint=f"klamm acl list {shlex.quote(user)} shows all")
        confirm("\n".join(f"remove {acl}" for acl in doomed), yes=yes)
        removed = [acl for matched in acls.remove([AclFilter(*acl) for acl in doomed]) for acl in matched]
    out.report(f"removed {count_of(len(removed), 'rule')}", {"rules": [_row(acl) for acl in removed]})


@app.command()
def explain(
    user: User,
    operation: Annotated[str, typer.Argument(metavar="OPERATION", help="read, write, …", show_default=False)],
    name: Name = None,
    store: StoreOption = None,
    kind: Type = "topic",
    host: Annotated[
        str, typer.Option(metavar="ADDRESS", help="The address of the client. [default: one that no rule names]")
    ] = "",
    config: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", envvar="KLAMM_CONFIG", help="The TOML file of the server, for its super.users and the like."
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="Setting of the server, by name; may be repeated."),
    ] = None,
    *,
    out: OutputOption,
) -> None:
    """Say whether a user may do something, and which rule decides, or which one is missing."""
    from klamm.cli.serve import settings_from
    from klamm.store.acl_index import AclIndex
    from klamm.store.acls import Acls

    resource_type, resource_name = _resource(kind, name)
    (asked,) = _operations(operation, resource_type, single=True)
    served = settings_from(config, settings or [])
    principal = _principal(user)
    check_directory(store, "acl", _HINT)
    with opened(store, looks=True) as events:
        index = AclIndex(
            Acls(core_of(events).catalog).all(),
            super_users=served.super_user_names,
            allow_everyone=served.allow_everyone_if_no_acl_found,
        )
    decision = index.decide(principal, host, asked, resource_type, resource_name)
    missing = None
    if not decision.is_allowed and decision.acl is None:
        words = ["klamm", "acl", "add", user, asked.name.lower()]
        words += ["--type", kind] if kind != "topic" else []
        missing = shlex.join([*words, *([name] if name is not None else [])])
    out.print_object(
        {
            "allowed": decision.is_allowed,
            "principal": principal,
            "operation": asked.name,
            "type": resource_type.name,
            "name": resource_name,
            "because": _REASONS[decision.reason],
            "rule": None if decision.acl is None else (str(decision.acl) if out.is_table else _row(decision.acl)),
            "missing": missing,
        }
    )


_REASONS = {
    "super_user": "it is one of super.users",
    "acl": "a rule says so",
    "missing": "no rule allows it",
    "no_acl": "no rule is for this resource (allow.everyone.if.no.acl.found decides)",
}


# ---- words

_Choice = TypeVar("_Choice", bound=IntEnum)


def _row(acl: Acl) -> dict[str, Any]:
    return {
        "principal": acl.principal,
        "permission": acl.permission.name,
        "operation": acl.operation.name,
        "type": acl.resource_type.name,
        "name": acl.resource_name,
        "pattern": acl.pattern_type.name,
        "host": acl.host,
    }


def _principal(user: str) -> str:
    return user if user.startswith("User:") else f"User:{user}"


def _choose(what: str, word: str, choices: list[_Choice]) -> _Choice:
    names = {choice.name: choice for choice in choices}
    chosen = names.get(word.strip().upper().replace("-", "_"))
    if chosen is None:
        words = [choice.replace("_", "-").lower() for choice in names]
        near = nearest(word.lower(), words)
        raise InvalidSetting(f"acl: there is no {what} {word!r}", hint=near or f"expected {', '.join(words)}")
    return chosen


def _type(word: str) -> ResourceType:
    from klamm.store.acl import SUPPORTED

    return _choose("type", word, list(SUPPORTED))


def _resource(kind: str, name: str | None) -> tuple[ResourceType, str]:
    from klamm.store.acl import CLUSTER_NAME, ResourceType

    resource_type = _type(kind)
    if resource_type is ResourceType.CLUSTER:
        name = CLUSTER_NAME if name is None else name
    if name is None:
        raise InvalidSetting("acl: missing NAME", hint=f"name the {kind} after the operation; '*' is every {kind}")
    return resource_type, name


def _operations(words: str, resource_type: ResourceType, *, single: bool = False) -> list[Operation]:
    from klamm.store.acl import SUPPORTED, Operation, ResourceType

    choices: list[Operation]
    if resource_type is ResourceType.ANY:
        choices = [operation for operation in Operation if operation is not Operation.ANY]
    else:
        choices = [*SUPPORTED[resource_type], *([] if single else [Operation.ALL])]
    what = "operation" if resource_type is ResourceType.ANY else f"operation on a {resource_type.name.lower()}"
    return [_choose(what, word, choices) for word in ([words] if single else words.split(","))]
