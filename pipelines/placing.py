"""A job's nodes and shares as records, and the log of changes of shares that a replay reads."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from hetero.errors import DataError
from hetero.loops.shares import going_on, whole_parts
from hetero.records import JobSpec, NodePlace, SharesFrom, ShareSpec
from pipelines.problems import Problem, job_problems
from pipelines.run_schema import Roles


def places_of(roles: Roles) -> tuple[NodePlace, ...]:
    """Every node that the job names."""
    return tuple(
        NodePlace(
            labels=node.labels,
            resources=node.resources,
            readers=node.readers,
            servers=node.servers,
            towers=node.towers,
            tower_threads=node.tower_threads,
        )
        for node in roles.nodes
        for _ in range(node.count)
    )


def shares_of(roles: Roles) -> ShareSpec:
    """How batches are divided. Raises JobError for a log of another number of towers, DataError for a damaged one."""
    shares = roles.towers.shares
    if shares.replay is None:
        return ShareSpec(first=whole_parts(shares.first), measured=shares.measured)
    replay = read_share_log(Path(shares.replay))
    strange = next((change for change in replay if len(change.parts) != roles.towers.count), None)
    if strange is not None:
        told = f"has shares of {len(strange.parts)} towers, the job has {roles.towers.count}"
        raise job_problems([Problem(("roles", "towers", "shares", "replay"), told)])
    return ShareSpec(replay=replay)


def read_share_log(path: Path) -> tuple[SharesFrom, ...]:
    """The changes in a run's `shares.jsonl`, by ascending step; none where there is no such file but its folder is.

    Raises DataError for what is no such log.
    """
    if not path.is_file() and path.parent.is_dir():
        return ()
    try:
        records = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line]
        return tuple(SharesFrom(step=int(each["step"]), parts=tuple(map(int, each["parts"]))) for each in records)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path}: is no log of shares ({error}); a run with several towers writes one") from error


def with_shares_of(spec: JobSpec, *, log: Path, step: int) -> JobSpec:
    """The job of a run that goes on from a step: with the shares it had there, as its log has them."""
    if spec.towers.count == 1:
        return spec
    return replace(spec, shares=going_on(spec.shares, read_share_log(log), step=step))


def share_lines(changes: Iterable[SharesFrom]) -> str:
    """Changes as lines of the log."""
    return "".join(json.dumps({"step": change.step, "parts": list(change.parts)}) + "\n" for change in changes)
