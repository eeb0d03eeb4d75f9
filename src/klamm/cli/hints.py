"""Hints about what was typed: the command or option to try next. Those of other errors: api/hints.py.

COMMANDS   by a word that is not a command here: what people who know other tools type first
VERBS      the same behind a noun: `klamm topic ls`
OPTIONS    the same for options; several where commands differ
ARGUMENTS  by an option: what is an argument here
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from difflib import get_close_matches

from klamm.store.names import nearest

__all__ = ["ARGUMENTS", "COMMANDS", "OPTIONS", "VERBS", "hint_for_command", "hint_for_option"]

_WORDS = {
    "klamm --help": "help man usage",
    "klamm --version": "version",
    "klamm backup": "snapshot cp",
    "klamm bench": "benchmark perf perf-test",
    "klamm check": "fsck verify validate doctor repair",
    "klamm compact": "clean cleanup vacuum",
    "klamm copy": "clone mirror replicate restore sync",
    "klamm dlq list": "dead-letters deadletters",
    "klamm export": "dump",
    "klamm group list": "groups consumers consumer-groups lag",
    "klamm group reset": "reset rewind seek offsets",
    "klamm import": "load",
    "klamm info": "status stat stats state summary overview top",
    "klamm inspect": "decode dump-log",
    "klamm send": "produce producer publish pub push put write append insert add",
    "klamm serve": "start server up listen broker daemon",
    "klamm sql": "query select",
    "klamm tail": "consume consumer subscribe sub read get cat head watch follow",
    "klamm topic create": "create mk make new init mkdir touch",
    "klamm topic delete": "delete del rm remove drop",
    "klamm topic list": "ls list topics dir",
    "klamm topic purge": "purge truncate trim",
    "klamm topic set": "set alter config configure settings",
    "klamm topic show": "describe show",
    "klamm tx list": "transaction transactions txn txns",
    "klamm trouble": "problems alerts errors health",
    "klamm upgrade": "migrate update",
    "klamm who": "locks lock lsof ps",
    "klamm work": "worker workers run handle",
}
COMMANDS = {word: command for command, words in _WORDS.items() for word in words.split()}
_VERB_WORDS = {
    "abort": "cancel end fence kill",
    "create": "add make mk new",
    "delete": "del drop forget remove rm",
    "export": "dump save",
    "import": "load restore",
    "list": "all ls",
    "purge": "clean empty trim truncate",
    "redrive": "replay requeue retry",
    "reset": "move rewind seek",
    "set": "alter config configure update",
    "show": "describe get info status",
}
VERBS = {word: verb for verb, words in _VERB_WORDS.items() for word in words.split()}
OPTIONS = {
    "--begin": ("--from WHERE",),
    "--bootstrap-server": ("--store kafka://HOST:PORT",),
    "--broker": ("--store kafka://HOST:PORT",),
    "--brokers": ("--store kafka://HOST:PORT",),
    "--concurrency": ("--workers N",),
    "--consumer-group": ("--group GROUP",),
    "--db": ("--store PATH",),
    "--end": ("--until WHERE",),
    "--fix": ("--repair",),
    "--from-beginning": ("--from earliest",),
    "--group-id": ("--group GROUP",),
    "--json": ("-o json",),
    "--last": ("-n N",),
    "--limit": ("-n N",),
    "--lines": ("-n N",),
    "--max-messages": ("-c N",),
    "--offset": ("--from OFFSET",),
    "--output": ("--to FILE", "-o"),
    "--port": ("--kafka PORT",),
    "--start": ("--from WHERE",),
    "--table": ("-o table",),
    "-f": ("-o FORMAT",),
    "-g": ("--group GROUP",),
    "-p": ("--kafka PORT",),
}
ARGUMENTS = {
    "--config": "settings",
    "--handler": "handler",
    "--message": "values",
    "--path": "path",
    "--topic": "topic topics",
    "--topics": "topic topics",
    "--value": "values",
    "-m": "values",
    "-t": "topic topics",
}


def hint_for_command(word: str, path: str, commands: Collection[str]) -> str:
    """Return what to type in the place of `word`, which is none of the `commands` behind `path`."""
    if path == "klamm":
        meant = COMMANDS.get(word)
    else:
        meant = f"{path} {VERBS[word]}" if VERBS.get(word) in commands else None
    return f"use {meant}" if meant else nearest(word, commands) or f"see {path} --help"


def hint_for_option(option: str, path: str, options: Collection[str], arguments: Mapping[str, str]) -> str:
    """Return what to type in the place of `option`, which is none of the `options` of the command.

    `arguments` are those that the command has, by name: what is shown for them in its usage.
    """
    for meant in OPTIONS.get(option, ()):
        if meant.split(" ")[0] in options:
            return f"use {meant}"
    for name in ARGUMENTS.get(option, "").split():
        if name in arguments:
            return f"use {path} {arguments[name]}"
    bare = {name.lstrip("-"): name for name in options if name.startswith("--")}
    close = get_close_matches(option.lstrip("-"), list(bare), n=1, cutoff=0.7)
    return f"did you mean {bare[close[0]]!r}?" if close else f"see {path} --help"
