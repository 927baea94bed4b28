"""What a job's sections must agree on among themselves: names that refer to one another, counts that must fit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from hetero.records import DEFAULT_BUCKETS, Pooling
from pipelines.problems import Path, Problem, nearest
from pipelines.schema import Dense, Sparse

if TYPE_CHECKING:
    from pipelines.job import Job

MOST_TABLES = 1 << 16


def check(job: Job) -> list[Problem]:
    """Everything the sections disagree about; empty for a job that can run."""
    return [
        *_names(job),
        *_columns(job),
        *(p for number, feature in enumerate(job.features.sparse) for p in _sparse(job, number, feature)),
        *_tables(job),
        *_roles(job),
        *_modes(job),
        *_storage(job),
        *_policies(job),
        *_server_schedule(job),
        *_elastic(job),
    ]


def logical_tables(job: Job) -> list[tuple[int, str]]:
    """(number of the table entry, name of the feature that owns the rows), in job order, each pair once."""
    pairs = (
        (number, feature.keys_as or feature.name)
        for number, table in enumerate(job.tables)
        for feature in job.features.sparse
        if table.name in (feature.tables or ())
    )
    return list(dict.fromkeys(pairs))


def _storage(job: Job) -> Iterator[Problem]:
    if job.storage.memory_bytes is not None and job.snapshots.deltas:
        yield Problem(
            ("snapshots", "deltas"),
            f"is {job.snapshots.deltas}, and storage.memory_bytes is given: rows on SSD do not tell what changed since "
            "a snapshot; set it to 0",
        )


def _policies(job: Job) -> Iterator[Problem]:
    for number, table in enumerate(job.tables):
        for name, section in (("admission", table.admission), ("eviction", table.eviction)):
            path: Path = ("tables", number, name)
            if section is not None and job.train.mode == "geo":
                yield Problem(path, "towers train copies of their own in train.mode `geo`; use another mode")
        admission = table.admission
        counts = admission is not None and (admission.forget_days is not None or admission.score is not None)
        if (counts or table.eviction is not None) and job.train.day_steps is None:
            yield Problem(
                ("tables", number, "eviction" if table.eviction else "admission"),
                "counts days, and train.day_steps does not say how many steps a day has; give it",
            )


def _server_schedule(job: Job) -> Iterator[Problem]:
    path: Path = ("roles", "servers", "schedule")
    if not job.roles.servers.schedule:
        return
    if job.storage.memory_bytes is not None:
        yield Problem(
            path,
            "is given, and storage.memory_bytes too: rows on SSD do not tell what changed since they were copied to "
            "another server; leave one of them out",
        )
    if any(table.admission or table.eviction for table in job.tables):
        yield Problem(
            path,
            "is given, and a table has admission or eviction: what policies count of keys without rows stays on its "
            "server; leave one of them out",
        )
    if job.train.mode in ("async", "geo"):
        yield Problem(
            path,
            f"is given, and train.mode is `{job.train.mode}`, which keeps dense parameters on the servers: the number "
            "of servers can change in `sync` and `bounded` only; leave schedule out, or set mode to one of these",
        )
    for number, at in enumerate(job.roles.servers.schedule):
        if at.count > DEFAULT_BUCKETS:
            yield Problem((*path, number, "count"), f"is {at.count}; at most one server a bucket, {DEFAULT_BUCKETS}")


def _elastic(job: Job) -> Iterator[Problem]:
    elastic, roles = job.roles.elastic, job.roles
    if elastic is None:
        return
    path: Path = ("roles", "elastic")
    for name in ("readers", "servers", "towers"):
        bounds, count = getattr(elastic, name), getattr(roles, name).count
        if bounds is not None and not bounds[0] <= count <= bounds[1]:
            least, most = bounds
            yield Problem((*path, name), f"is [{least}, {most}], and roles.{name} begins with {count}; include it")
    shares = roles.towers.shares
    for given, what in (
        (bool(roles.nodes), "roles.nodes says where a fixed number of actors is"),
        (bool(roles.servers.schedule), "roles.servers.schedule changes their number too"),
        (bool(shares.first) or shares.replay is not None, "roles.towers.shares divides a batch among a fixed number"),
    ):
        if given:
            yield Problem(path, f"is given, and {what}; leave one of them out")


def _by_kind(job: Job) -> tuple[tuple[str, Sequence[Sparse | Dense]], ...]:
    return (("sparse", job.features.sparse), ("dense", job.features.dense))


def _names(job: Job) -> Iterator[Problem]:
    first: dict[str, str] = {}
    for kind, features in _by_kind(job):
        for number, feature in enumerate(features):
            here = f"features.{kind}[{number}]"
            if feature.name in first:
                yield Problem(
                    ("features", kind, number, "name"),
                    f"`{feature.name}` is the name of {first[feature.name]} too; names of features must differ "
                    "(`column` may be the same)",
                )
            first.setdefault(feature.name, here)
    seen: dict[str, int] = {}
    for number, table in enumerate(job.tables):
        if table.name in seen:
            yield Problem(("tables", number, "name"), f"`{table.name}` is the name of tables[{seen[table.name]}] too")
        seen.setdefault(table.name, number)
    if not first:
        yield Problem(("features",), "has neither sparse nor dense features; name at least one")


def _columns(job: Job) -> Iterator[Problem]:
    taken = {"label": job.data.label, "weight": job.data.weight}
    for kind, features in _by_kind(job):
        for number, feature in enumerate(features):
            for role, column in taken.items():
                if feature.column == column:
                    yield Problem(
                        ("features", kind, number, "column"),
                        f"`{column}` is data.{role}; the model must not see it as a feature",
                    )


def _sparse(job: Job, number: int, feature: Sparse) -> Iterator[Problem]:
    path: Path = ("features", "sparse", number)
    tables = {table.name: table for table in job.tables}
    names = feature.tables or ()
    if not names:
        yield Problem((*path, "tables"), "the feature is in no table, so nothing would see it; name one")
    for position, name in enumerate(names):
        here = (*path, "tables", position)
        if name not in tables:
            yield Problem(here, f"there is no table `{name}`{nearest(name, tables)}")
        elif name in names[:position]:
            yield Problem(here, f"`{name}` stands there twice")
        elif feature.pooling is Pooling.NONE and tables[name].dim == 1:
            yield Problem(
                here,
                f"`{name}` has dim 1, and a sequence (pooling `none`) needs a table of dim above 1; to use the "
                "column there too, add a feature with pooling `sum` or `mean` and `keys_as`",
            )
    yield from _list_settings(path, feature)
    if feature.keys_as is not None:
        yield from _sharing((*path, "keys_as"), job.features.sparse, feature)


def _list_settings(path: Path, feature: Sparse) -> Iterator[Problem]:
    if feature.is_list and feature.buckets is not None:
        yield Problem((*path, "buckets"), "works on one number a row, and the feature is a list")
    if feature.is_list:
        return
    if feature.pooling is Pooling.NONE:
        yield Problem((*path, "pooling"), "`none` hands over a sequence, and the feature is no list; set list: true")
    if feature.max_length is not None:
        yield Problem((*path, "max_length"), "has no effect on a feature that is no list; set list: true")


def _sharing(path: Path, features: Sequence[Sparse], feature: Sparse) -> Iterator[Problem]:
    others = {other.name: other for other in features if other.name != feature.name}
    owner = others.get(feature.keys_as or "")
    if owner is None:
        yield Problem(path, f"there is no other feature `{feature.keys_as}`{nearest(str(feature.keys_as), others)}")
    elif owner.keys_as is not None:
        yield Problem(path, f"`{owner.name}` shares the rows of `{owner.keys_as}` itself; name that one")
    elif (owner.ids, owner.buckets) != (feature.ids, feature.buckets):
        yield Problem(
            path,
            f"`{owner.name}` makes its keys in another way (ids `{owner.ids.value}` and `{feature.ids.value}`, or "
            "other buckets), so equal values would not meet in a row",
        )


def _tables(job: Job) -> Iterator[Problem]:
    used = {name for feature in job.features.sparse for name in feature.tables or ()}
    for number, table in enumerate(job.tables):
        if table.name not in used:
            yield Problem(
                ("tables", number), f"no feature uses `{table.name}`; take it out or name it in a feature's tables"
            )
    if (count := len(logical_tables(job))) > MOST_TABLES:
        yield Problem(("tables",), f"make {count} logical tables, the limit is {MOST_TABLES}")


def _roles(job: Job) -> Iterator[Problem]:
    if job.train.batch_size < job.roles.towers.count:
        yield Problem(
            ("train", "batch_size"),
            f"{job.train.batch_size} rows a step cannot be dealt to {job.roles.towers.count} towers; raise it, or "
            "lower roles.towers",
        )
    first = job.roles.towers.shares.first
    if first and len(first) != job.roles.towers.count:
        yield Problem(
            ("roles", "towers", "shares", "first"),
            f"has {len(first)} numbers for {job.roles.towers.count} towers; give one for each",
        )
    for name in ("readers", "servers", "towers") if job.roles.nodes else ():
        placed = sum(node.count * getattr(node, name) for node in job.roles.nodes)
        count = getattr(job.roles, name).count
        if placed != count:
            yield Problem(
                ("roles", "nodes"), f"place {placed} {name}, and roles.{name} has {count}; change either, or plan again"
            )


def _modes(job: Job) -> Iterator[Problem]:
    train, towers = job.train, job.roles.towers.count
    if train.window and train.mode != "sync":
        yield Problem(
            ("train", "window"),
            f"is {train.window}, and train.mode is `{train.mode}`: rows are leased in `sync` only; leave window out or "
            "set it to 0, or set mode to `sync`",
        )
    if train.pooling == "server" and (train.mode != "sync" or train.window):
        yield Problem(
            ("train", "pooling"),
            f"is `server`, and train.mode is `{train.mode}` with window {train.window}: servers pool in `sync` without "
            "windows only, as towers that lease rows have them; set window to 0 and mode to `sync`, or pooling to "
            "`tower`",
        )
    if train.staleness is not None and train.mode in ("sync", "async"):
        why = "`sync` never reads a stale row" if train.mode == "sync" else "`async` has no bound, it is measured"
        yield Problem(
            ("train", "staleness"),
            f"is {train.staleness}, and train.mode is `{train.mode}`: {why}; leave staleness out, or set mode to "
            "`bounded` or `geo`",
        )
    if train.geo_scale is not None and train.mode != "geo":
        yield Problem(
            ("train", "geo_scale"),
            f"is {train.geo_scale}, and train.mode is `{train.mode}`: only `geo` sends differences; leave geo_scale "
            "out, or set mode to `geo`",
        )
    if train.mode == "bounded" and train.staleness is not None and train.staleness < towers - 1:
        yield Problem(
            ("train", "staleness"),
            f"is {train.staleness}, too small for {towers} towers: in `bounded` the others may push the same step "
            f"first; set it to {towers - 1} or more, or set mode to `sync`",
        )
    if train.mode == "geo":
        yield from _geo_tables(job)


def _geo_tables(job: Job) -> Iterator[Problem]:
    for number, table in enumerate(job.tables):
        if table.optimizer.name == "ftrl":
            yield Problem(
                ("tables", number, "optimizer", "name"),
                "`ftrl` computes weights anew from sums of its own, so in train.mode `geo` it would undo what the "
                "servers send; use another optimizer, or another mode",
            )
