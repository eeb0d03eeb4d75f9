"""`klamm cheat`: the ten commands people need, with examples."""

from __future__ import annotations

import typer

from klamm.cli.output import styled

__all__ = ["CHEATS", "cheat"]

CHEATS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("Make a topic (the store too: here, or --store PATH, or KLAMM_STORE)", ("klamm topic create orders -p 3",)),
    ("Send", ("klamm send orders 'one coffee' -k alice", "cat lines.txt | klamm send orders -K :")),
    (
        "Look at the last records, and follow",
        ("klamm tail orders -n 20 -f", r"klamm tail orders users -o '%T %t %k %v\n'"),
    ),
    ("Find records", ("klamm tail orders --from 2h --where '$.total > 100'", "klamm tail orders --key alice -n 5")),
    ("Ask in SQL", ("klamm sql 'select text(key), count(*) from orders group by 1'",)),
    ("See who is behind, and move a group", ("klamm group list", "klamm group reset billing --to 2h")),
    (
        "Dead letters: why, back, and out of the way",
        ("klamm dlq list orders.dlq", "klamm dlq redrive orders.dlq", "klamm dlq purge orders.dlq"),
    ),
    ("Out and in again", ("klamm export orders --to orders.parquet", "klamm import orders orders.parquet")),
    ("Serve Kafka clients on the same files", ("klamm serve . --kafka 9092",)),
    ("Look after it", ("klamm info", "klamm trouble", "klamm check", "klamm compact", "klamm backup /backups/today")),
)


def cheat() -> None:
    """Show the ten commands people need."""
    for what, commands in CHEATS:
        typer.echo(styled(f"# {what}", dim=True))
        for command in commands:
            typer.echo(f"  {command}")
