"""What policies say of one key: what its row has counted, when it came, and why it stays, would go, went or waits."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from hetero.checkpoint.manifest import FileKind
from hetero.checkpoint.snapshot import Snapshot
from hetero.checkpoint.words import read_words, words_kind
from hetero.embedding.policies.admission import CLICK_UNITS, seen_and_day
from hetero.embedding.policies.dropped import REASONS, told
from hetero.embedding.policies.eviction import Judge
from hetero.keys.routing import bucket_of, mixed_seeds
from hetero.optim.definition import STATISTICS, group_width
from hetero.records import F32, AdmissionSpec, Clock, EvictionSpec, GroupSpec, JobSpec, KeySet, TableSpec

_WHY = {
    "expired": "it was not seen for more than {expire_days} days",
    "low_score": "its score fell below {min_score:g}",
    "over_capacity": "others of its bucket had higher scores, and the table's capacity is {capacity:,} rows",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RowStory:
    """statistics: of the row as of the model's day, with its score. came, why: for people."""

    statistics: dict[str, float | int]
    came: str
    why: str


def row_story(snapshot: Snapshot, spec: JobSpec, group: GroupSpec, *, keys: KeySet, row: F32) -> RowStory:
    """Of a row float32 [1, W] that is there. keys: its own. The group drops rows."""
    assert group.eviction is not None
    assert spec.clock is not None
    day = model_day(snapshot, spec.clock)
    judge = _judge(spec, group, group.eviction)
    shows, clicks, seen, came = row[0, -len(STATISTICS) :].tolist()
    factor = float(judge.powers[int(min(day + 1 - seen, len(judge.powers) - 1))]) if seen else 1.0
    now = judge.judge(keys, row, day=day)
    statistics: dict[str, float | int] = {
        "shows": shows * factor,
        "clicks": clicks * factor,
        "score": float(now.scores[0]),
        "seen_day": int(seen) - 1,
        "came_day": int(came) - 1,
        "model_day": day,
    }
    if not seen:
        return RowStory(statistics=statistics, came="from a model without statistics", why="no step has seen it since")
    return RowStory(
        statistics=statistics,
        came=f"on day {int(came) - 1}, which is {_steps_of(int(came) - 1, spec.clock)}",
        why=_when_it_goes(judge, group.eviction, keys, row, day=day),
    )


def absence(snapshot: Snapshot, spec: JobSpec, group: GroupSpec, table: TableSpec, key: int) -> str | None:
    """Why a key without a row has none, where a policy says so."""
    words = _words_of(snapshot, spec, group, table, key)
    told_of = []
    if "waiting" in words and group.admission is not None:
        told_of.append(_what_it_waits_for(words["waiting"], group.admission))
    if "dropped" in words and group.eviction is not None:
        gone = told(words["dropped"])
        told_of.append(f"its row was dropped when day {gone.day} began: {_reason(gone.reason, group.eviction)}")
    return "; ".join(told_of) or None


def _what_it_waits_for(word: int, rule: AdmissionSpec) -> str:
    seen, day = seen_and_day(word)
    last = f"the last on day {day} (modulo 64)"
    if rule.score is not None:
        return (
            f"it waits for a row: its score is {seen / CLICK_UNITS:g} from steps that have seen it, {last}; it gets "
            f"one when a day begins and it has {rule.score:g}"
        )
    if rule.probability < 1:
        needs = f"each step that sees it gives it a row with probability {rule.probability:g}"
    else:
        needs = f"it gets a row in the step that sees it for the {rule.after}. time"
    return f"it waits for a row: {seen} steps have seen it, {last}; {needs}"


def model_day(snapshot: Snapshot, clock: Clock) -> int:
    """The day of the last step a model was trained."""
    return clock.day_of(max(0, snapshot.manifest.step - 1))


def _judge(spec: JobSpec, group: GroupSpec, eviction: EvictionSpec) -> Judge:
    shift = np.uint64(65 - spec.buckets.bit_length())
    return Judge(
        replace(eviction, capacity=None), width=group_width(group), seeds=mixed_seeds(spec.groups), shift=shift
    )


def _when_it_goes(judge: Judge, eviction: EvictionSpec, keys: KeySet, row: F32, *, day: int) -> str:
    """The first day on which it goes if nobody sees it again; looked for by halving, as scores only fall."""
    last = day + len(judge.powers)
    if not judge.judge(keys, row, day=last).verdicts[0]:
        also = "" if eviction.capacity is None else " unless others of its bucket fill the table's capacity"
        return f"it stays, seen or not{also}"
    first = day + 1
    while first < last:
        middle = (first + last) // 2
        if judge.judge(keys, row, day=middle).verdicts[0]:
            last = middle
        else:
            first = middle + 1
    reason = REASONS[int(judge.judge(keys, row, day=first).verdicts[0])]
    return f"if no step sees it again, it goes when day {first} begins: {_reason(reason, eviction)}"


def _reason(reason: str, eviction: EvictionSpec) -> str:
    return _WHY[reason].format(
        expire_days=eviction.expire_days, min_score=eviction.min_score or 0.0, capacity=eviction.capacity or 0
    )


def _steps_of(day: int, clock: Clock) -> str:
    return f"steps {day * clock.day_steps} to {(day + 1) * clock.day_steps - 1}"


def _words_of(snapshot: Snapshot, spec: JobSpec, group: GroupSpec, table: TableSpec, key: int) -> dict[str, int]:
    """The words that a snapshot holds of a key, by kind; only files of its bucket are read."""
    wanted = KeySet(np.array([table.index], np.uint16), np.array([key], np.uint64))
    bucket = int(bucket_of(wanted, seeds=mixed_seeds(spec.groups), buckets=snapshot.manifest.job.buckets)[0])
    found: dict[str, int] = {}
    for entry in snapshot.manifest.of_kind(FileKind.WORDS):
        if entry.group is None or spec.groups[entry.group] is not group:
            continue
        if any(start <= bucket < stop for start, stop in entry.buckets):
            keys, words = read_words(snapshot, entry)
            at = np.flatnonzero((keys.keys == np.uint64(key)) & (keys.tables == table.index))
            if len(at):
                found[words_kind(entry)] = int(words[at[0]])
    return found
