"""The pipelines of a store: where their folders are, how far each has come, and how to begin again or to end one.

    <store>/pipelines/<name>/          the folder of a pipeline that was given none: its name is the folder's
    <store>/pipelines/<name>.json      {"directory": "…"}: a pipeline whose folder is elsewhere, such as an archive

The first run of a pipeline puts it here; pipelines of an older Klamm come with their next run. Nothing here needs
Spark: what a pipeline has done is in its folder (pipeline_directory.py), in Spark's checkpoint, and in an archive's
journal.

Promises
  R1  A reset that was killed leaves a folder that no run accepts, until the reset is run again: never half of an output
      that a new run would write twice.
  R2  Nothing is removed while a run is at work.
"""

from __future__ import annotations

import json
import os
import shutil
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any

from klamm.disk import files
from klamm.disk.locks import LockFile
from klamm.errors import InvalidSetting, KlammError, UnknownTopic
from klamm.spark.checkpoint import committed, ends_of
from klamm.spark.pipelines.archive_table import ArchiveTable, table_of
from klamm.spark.pipelines.folder_files import is_object
from klamm.spark.pipelines.journal import JOURNAL, State
from klamm.spark.pipelines.pipeline_directory import PipelineDirectory, Run, local
from klamm.store.deletion import delete_topic
from klamm.store.directory import Core, opened
from klamm.store.names import nearest

__all__ = [
    "PipelineChange",
    "PipelineInfo",
    "list_pipelines",
    "register",
    "reset_pipeline",
    "retire_pipeline",
    "show_pipeline",
]

_ENTRY = ".json"


@dataclass(frozen=True)
class PipelineInfo:
    """A pipeline of a store: what it is, how far it has come, and how its last run ended."""

    name: str
    pipeline: str = ""
    """archive, aggregate, join, deduplicate, or the `pipeline` that `checkpoint` was given."""
    topics: list[str] = field(default_factory=list)
    """That it reads."""
    target: str | None = None
    """The topic or folder that it writes; None if it is not known."""
    directory: str = ""
    state: str = "unknown"
    """running; idle; failed; killed (the last run did not end by itself); new (it never ran); resetting (a reset was
    killed: run it again); missing (its folder is gone); unknown (a pipeline of your own, whose runs are not recorded;
    an archive in an object store: in a list, which does not look there, or while its last run has not ended)."""
    lag: int | None = None
    """Offsets that the next run has to read; None if a topic is gone, or its progress cannot be read."""
    batches: int = 0
    """Micro-batches that are done."""
    last_batch_ms: int | None = None
    """When the last of them was done, since 1970."""
    started_ms: int | None = None
    ended_ms: int | None = None
    """Of the last run."""
    error: str | None = None
    """What the last run ended with, or why its progress cannot be read."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """What may not change between two runs."""
    partitions: list[dict[str, Any]] = field(default_factory=list)
    """topic, partition, position, end, lag."""

    @property
    def age_ms(self) -> int | None:
        """How long ago the last micro-batch was done."""
        return None if self.last_batch_ms is None else max(0, time.time_ns() // 1_000_000 - self.last_batch_ms)

    def to_dict(self) -> dict[str, Any]:
        """Return it as one JSON object."""
        return {**asdict(self), "age_ms": self.age_ms}


@dataclass(frozen=True)
class PipelineChange:
    """The changes that a reset or a retirement makes, or has made."""

    name: str
    removes: list[str]
    """Files and folders."""
    deletes: dict[str, int]
    """Topics, and how many offsets they have."""
    keeps: list[str]
    """What stays, as sentences."""
    done: bool
    """False: it was a dry run."""

    def to_dict(self) -> dict[str, Any]:
        """Return it as one JSON object."""
        return asdict(self)


def register(store: str, directory: str, identity: Mapping[str, Any]) -> None:
    """Register, in the store, a folder that is not in its own directory of pipelines."""
    home = f"{store}/pipelines"
    if os.path.dirname(directory) == home or any(where == directory for _, where in _entries(store)):
        return
    files.make_directories(home)
    base = "-".join((identity["pipeline"], *identity["topics"]))
    written = f"{home}/{uuid.uuid4().hex}.tmp"
    try:
        files.replace(written, json.dumps({"directory": directory}).encode() + b"\n")
        for number in range(1, 10_000):
            name = base if number == 1 else f"{base}-{number}"
            if os.path.exists(f"{home}/{name}"):
                continue
            with suppress(FileExistsError):
                os.link(written, f"{home}/{name}{_ENTRY}")  # whole, or not there: a process may be killed here
                return
    finally:
        files.remove(written)
        files.sync_directory(home)


def list_pipelines(store: str | os.PathLike[str]) -> list[PipelineInfo]:
    """Return the pipelines of a store, by name."""
    path = local(store)
    with opened(path, read_only=True) as core:
        return [
            _info(core, name, directory) if not is_object(directory) else _remote_info(name, directory)
            for name, directory in sorted(_entries(path))
        ]


def show_pipeline(store: str | os.PathLike[str], name: str) -> PipelineInfo:
    """Return one pipeline of a store; InvalidSetting if there is none of that name."""
    path = local(store)
    with opened(path, read_only=True) as core:
        return _info(core, name, _directory(path, name))


def reset_pipeline(
    store: str | os.PathLike[str], name: str, *, keep_output: bool = False, dry_run: bool = False
) -> PipelineChange:
    """Forget how far a pipeline has come, and remove what it has written: its next run begins at the beginning.

    The topic that it writes is deleted, with records of others if there are any; with `keep_output` it stays, and the
    next run writes the results into it again. An archive cannot keep its files. Dead letters stay, and come again.
    With `dry_run` nothing is changed. Return what is, or would be, removed. StoreBusy if a run is at work.
    """
    path = local(store)
    directory = _directory(path, name)
    if is_object(directory):
        raise InvalidSetting(
            f"{directory}: an archive in an object store is not reset by Klamm",
            hint="remove its objects with the store's own tools, or archive to a new folder",
        )
    with opened(path) as core:
        folder, kind, options = _read_folder(directory)
        if kind == "archive" and keep_output:
            raise InvalidSetting(
                f"{name}: an archive that is reset cannot keep its files: the next run would write their records again",
                hint="leave keep_output out, or archive to a new folder",
            )
        with folder.alone(recorded=False):
            topic = options.get("to") if kind != "archive" else None
            deletes = {} if topic is None or keep_output else _offsets_of(core, topic)
            keeps = [f"dead letters in {options['dead_letters']}"] if options.get("dead_letters") else []
            if topic is not None and keep_output:
                keeps.append(f"the topic {topic}: the next run writes its results again")
            if kind != "archive" and topic is None:
                keeps.append("what it has written: only the pipeline itself knows where that is")
            table = table_of(folder) if kind == "archive" else None
            change = PipelineChange(name, sorted(_progress_of(folder, table)), deletes, keeps, not dry_run)
            if not dry_run:
                folder.rewrite(resetting=True)
                if table is not None:
                    table.drop()
                for gone in deletes:
                    delete_topic(core, gone)
                for gone in change.removes:
                    _remove(gone)
                files.sync_directory(folder.inside(""))
                folder.rewrite(resetting=False)
            return change


def retire_pipeline(store: str | os.PathLike[str], name: str, *, dry_run: bool = False) -> PipelineChange:
    """Remove a pipeline from a store, for good: progress and state are deleted, what it has written stays.

    An archive can still be restored, but not be added to. StoreBusy if a run is at work.
    """
    path = local(store)
    directory = _directory(path, name)
    entry = f"{path}/pipelines/{name}{_ENTRY}"
    known = os.path.isdir(directory)
    if is_object(directory):
        kept = f"the archive {directory}, as it is: a run of archive would add to it, and list it again"
        change = PipelineChange(name, [entry], {}, [kept], not dry_run)
    elif not known:
        change = PipelineChange(name, [entry], {}, [], not dry_run)
    else:
        folder, kind, options = _read_folder(directory)
        with folder.alone(recorded=False):
            archived = kind == "archive"
            target = directory if archived else options.get("to")
            removes = (
                [folder.checkpoint, folder.inside("staging")] if archived else [os.path.dirname(folder.checkpoint)]
            )
            removes = [each for each in (*removes, entry) if os.path.exists(each)]
            keeps = [f"the files in {target}" if archived else f"the topic {target}"] if target else []
            change = PipelineChange(name, removes, {}, keeps, not dry_run)
            if not dry_run and archived:
                folder.rewrite(retired=True)
    if not dry_run:
        for gone in change.removes:
            _remove(gone)
        if known and not os.listdir(directory):
            os.rmdir(directory)
    return change


# ---- what there is


def _entries(store: str) -> Iterator[tuple[str, str]]:
    """Yield names, and folders."""
    home = f"{store}/pipelines"
    for name in os.listdir(home) if os.path.isdir(home) else ():
        path = f"{home}/{name}"
        if os.path.isdir(path):
            yield name, path
        elif name.endswith(_ENTRY):
            try:
                yield name.removesuffix(_ENTRY), str(json.loads(files.read(path))["directory"])
            except (OSError, ValueError, KeyError, TypeError):
                continue  # damaged: the pipeline's next run registers it again, by another name


def _directory(store: str, name: str) -> str:
    known = dict(_entries(store))
    if name not in known:
        raise InvalidSetting(
            f"{store}: has no pipeline {name!r}", hint=nearest(name, known) or "klamm pipeline list prints their names"
        )
    return known[name]


def _read_folder(directory: str) -> tuple[PipelineDirectory, str, Mapping[str, Any]]:
    known = PipelineDirectory.read(directory)
    if known is None:
        raise InvalidSetting(
            f"{directory}: there is no pipeline in it any more", hint="retire the pipeline, or put the folder back"
        )
    return PipelineDirectory(directory, known["options"]), str(known["identity"].get("pipeline")), known["options"]


def _remote_info(name: str, directory: str) -> PipelineInfo:
    """Return what is known of an archive in an object store without a look into it: that may take minutes to fail."""
    return PipelineInfo(name, pipeline="archive", target=directory, directory=directory)


def _info(core: Core, name: str, directory: str) -> PipelineInfo:
    try:
        known = PipelineDirectory.read(directory)
    except KlammError as problem:
        return PipelineInfo(name, directory=directory, error=str(problem))
    if known is None:
        return PipelineInfo(name, directory=directory, state="missing")
    folder, kind = PipelineDirectory(directory, known["options"]), str(known["identity"].get("pipeline"))
    run, topics = Run.read(folder), dict(known["identity"].get("topics") or {})
    state = "resetting" if known.get("resetting") else _state(folder, run)
    error = run.error if run else None
    partitions: list[dict[str, Any]] | None
    try:
        positions, batches, last_ms = _position(folder, kind)
        partitions = list(_partitions(core, topics, positions))
    except (KlammError, OSError, ValueError) as problem:
        partitions, batches, last_ms = None, 0, None
        error = error or str(problem)
    return PipelineInfo(
        name=name,
        pipeline=kind,
        topics=list(topics),
        target=directory if kind == "archive" else known["options"].get("to"),
        directory=directory,
        state=state,
        lag=None if partitions is None else sum(each["lag"] for each in partitions),
        batches=batches,
        last_batch_ms=last_ms,
        started_ms=run.started_ms if run else None,
        ended_ms=run.ended_ms if run else None,
        error=error,
        options=dict(known["options"]),
        partitions=partitions or [],
    )


def _state(folder: PipelineDirectory, run: Run | None) -> str:
    if not folder.files.is_local:  # there is no lock that would say whether a run is at work
        return "new" if run is None else "unknown" if run.ended_ms is None else "failed" if run.error else "idle"
    path = folder.inside("lock")
    if os.path.exists(path):
        lock = LockFile(path, create=False)
        try:
            if lock.held(0):
                return "running"
        finally:
            lock.close()
    if run is None:
        return "unknown" if os.path.isdir(folder.checkpoint) else "new"
    if run.ended_ms is None:
        return "killed"
    return "failed" if run.error is not None else "idle"


def _position(folder: PipelineDirectory, kind: str) -> tuple[dict[tuple[str, int], int], int, int | None]:
    """Return its position by topic and partition, how many micro-batches that took, and when the last was done."""
    if kind == "archive":
        state = State.read(folder.files)
        done_ms = folder.files.status(JOURNAL).modified_ms if state.batch >= 0 else None
        return {("", number): end for number, end in state.ends.items()}, state.batch + 1, done_ms
    number = committed(folder.checkpoint)
    if number is None:
        return {}, 0, None
    ends = {(tp.topic, tp.partition): end for tp, end in ends_of(folder.checkpoint, number)}
    return ends, number + 1, os.stat(f"{folder.checkpoint}/commits/{number}").st_mtime_ns // 1_000_000


def _partitions(
    core: Core, topics: Mapping[str, Any], positions: Mapping[tuple[str, int], int]
) -> Iterator[dict[str, Any]]:
    for name, topic_id in topics.items():
        topic = core.topic(name)
        if topic.topic.id != topic_id:
            raise UnknownTopic(f"{name}: was deleted and created again", hint="reset or retire the pipeline")
        for log in topic.partitions():
            ends = log.ends()
            position = positions.get((name, log.number), positions.get(("", log.number), ends.start))
            yield {
                "topic": name,
                "partition": log.number,
                "position": position,
                "end": ends.end,
                "lag": max(0, ends.end - max(position, ends.start)),
            }


# ---- what goes


def _progress_of(folder: PipelineDirectory, table: ArchiveTable | None) -> Iterator[str]:
    """Yield the files and folders that a reset removes: all but the one that names the folder's owner, and its lock."""
    ours = os.path.dirname(folder.checkpoint)
    for name in os.listdir(ours):
        if name not in ("pipeline.json", "lock"):
            yield f"{ours}/{name}"
    theirs = () if table is None else table.folders()
    for name in os.listdir(folder.directory):
        if name.startswith("date=") or name in theirs:
            yield f"{folder.directory}/{name}"


def _offsets_of(core: Core, topic: str) -> dict[str, int]:
    try:
        logs = core.topic(topic).partitions()
    except UnknownTopic:
        return {}
    return {topic: sum(ends.end - ends.start for ends in (log.ends() for log in logs))}


def _remove(path: str) -> None:
    if os.path.isdir(path):
        shutil.rmtree(path)
    else:
        files.remove(path)
