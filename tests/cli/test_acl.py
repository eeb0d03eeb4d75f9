"""`klamm acl`: rules of a store, with and without a server."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Cli


def brief(row: dict[str, str]) -> str:
    return " ".join(row[field] for field in ("permission", "principal", "operation", "type", "pattern", "name", "host"))


def test_rules_are_added_listed_and_removed(cli: Cli) -> None:
    (said,) = cli("acl", "add", "alice", "read,write", "orders", "--create").rows
    assert said["added"] == 2 and [rule["operation"] for rule in said["rules"]] == ["READ", "WRITE"]
    assert cli("acl", "add", "alice", "read", "orders").rows[0]["added"] == 0
    cli("acl", "add", "User:bob", "read", "bill", "--type", "group", "--prefixed", "--host", "10.0.0.1")
    cli("acl", "add", "*", "idempotent-write", "--type", "cluster", "--deny")
    assert [brief(row) for row in cli("acl", "list").rows] == [
        "DENY User:* IDEMPOTENT_WRITE CLUSTER LITERAL kafka-cluster *",
        "ALLOW User:bob READ GROUP PREFIXED bill 10.0.0.1",
        "ALLOW User:alice READ TOPIC LITERAL orders *",
        "ALLOW User:alice WRITE TOPIC LITERAL orders *",
    ]
    assert [row["name"] for row in cli("acl", "list", "bob").rows] == ["bill"]
    assert [row["name"] for row in cli("acl", "list", "--type", "group", "--name", "billing").rows] == ["bill"]
    assert cli("acl", "list", "--name", "nothing", "--type", "topic").rows == []
    cli("acl", "remove", "alice", "write", code=2)
    (said,) = cli("acl", "remove", "alice", "write", "--yes").rows
    assert [brief(rule) for rule in said["rules"]] == ["ALLOW User:alice WRITE TOPIC LITERAL orders *"]
    cli("acl", "remove", "alice", "--yes")
    assert len(cli("acl", "list").rows) == 2
    assert "there is no such rule" in cli("acl", "remove", "alice", "--yes", code=2).err


def test_what_decides_is_explained(cli: Cli, tmp_path: Path) -> None:
    cli("acl", "add", "alice", "read", "ord", "--prefixed", "--create")
    cli("acl", "add", "bob", "all", "orders", "--deny")

    def explain(*words: str) -> tuple[bool, str, str | None]:
        (said,) = cli("acl", "explain", *words).rows
        rule = said["rule"] and f"{said['rule']['permission']} {said['rule']['name']}"
        return said["allowed"], said["because"], rule or said["missing"]

    assert explain("alice", "read", "orders") == (True, "a rule says so", "ALLOW ord")
    assert explain("alice", "describe", "orders") == (True, "a rule says so", "ALLOW ord")
    assert explain("bob", "read", "orders") == (False, "a rule says so", "DENY orders")
    assert explain("carol", "write", "orders") == (False, "no rule allows it", "klamm acl add carol write orders")
    assert explain("carol", "read", "g", "--type", "group")[2] == "klamm acl add carol read --type group g"
    assert explain("carol", "alter", "--type", "cluster")[2] == "klamm acl add carol alter --type cluster"
    super_users = ["--set", "super.users=User:carol"]
    assert explain("carol", "write", "orders", *super_users) == (True, "it is one of super.users", None)
    (tmp_path / "serve.toml").write_text('[serve]\n"allow.everyone.if.no.acl.found" = true\nlog-format = "json"\n')
    config = ["--config", str(tmp_path / "serve.toml")]
    assert explain("carol", "write", "users", *config)[0] and not explain("carol", "write", "orders", *config)[0]
    table = cli("acl", "explain", "bob", "read", "orders", "-o", "table").out.decode()
    assert "DENY User:bob ALL on TOPIC LITERAL orders from *" in table


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["alice", "raed", "orders"], "did you mean 'read'?"),
        (["alice", "read", "orders", "--type", "topc"], "did you mean 'topic'?"),
        (["alice", "idempotent-write", "orders"], "there is no operation on a topic 'idempotent-write'"),
        (["alice", "read"], "missing NAME"),
        (["alice", "alter", "other", "--type", "cluster"], "the only one of type CLUSTER is kafka-cluster"),
        (["alice", "read", "orders", "--host", ""], "host"),
        (["", "read", "orders"], "principal"),
    ],
)
def test_what_cannot_be_a_rule_is_refused(cli: Cli, words: list[str], said: str) -> None:
    cli("topic", "create", "orders")
    assert said in cli("acl", "add", *words, code=2).err
    assert cli("acl", "list").rows == []
