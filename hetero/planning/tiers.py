"""What a budget of memory comes to: the servers' own tiers, run over a trace of keys without towers.

Consumes   windows (which rows enter, which leave)
Produces   per budget: hit rate, rows and bytes from SSD, write amplification

The stores are those of a run: the same eviction, segments and compaction, with the same rows asked for in the same
order. What makes it cheap is that only a part of the keys takes part, chosen by a hash, with budgets in proportion
(spatial sampling: Waldspurger et al. 2015, "Efficient MRC construction with SHARDS"). What a budget holds is computed
from the whole budget, as its buffers do not shrink in proportion. All servers together count as one.

Left out: policies (every key has a row), snapshots, and evaluation.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from hetero.embedding.answers import Create
from hetero.embedding.lease_table import LeaseTable
from hetero.embedding.open_rows import budget_parts, open_rows
from hetero.embedding.ssd.layout import Layout
from hetero.embedding.ssd.rows import buffer_bytes
from hetero.embedding.tier_budget import SampledBudget, TierBudget, budget_for
from hetero.embedding.tier_use import added_up
from hetero.embedding.tiered import TieredStore
from hetero.errors import PlanError
from hetero.kernels.mix import GOLDEN, mix64_reference
from hetero.keys.numbering import grown
from hetero.keys.routing import mixed_seeds
from hetero.keys.windows import GroupMoves, TowerWindow
from hetero.optim.definition import group_width
from hetero.records import U64, DiskIo, GroupSpec, JobSpec, KeySet, RoleSpec, StorageSpec

_LEASED_ROWS = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class TierPrediction:
    """What servers with budgets would do, over all of them. memory_bytes: of one server.

    memory_rows, ssd_rows: at the end. Rates are over the whole trace, first sight of rows included.
    """

    memory_bytes: int
    memory_hit_rate: float
    memory_rows: int
    ssd_rows: int
    ssd_hits_per_sample: float
    disk_read_bytes_per_sample: float
    disk_written_bytes_per_sample: float
    write_amplification: float
    disk_bytes: int
    samples: int


class _WorkingSet:
    """The keys of the latest window of one group."""

    def __init__(self) -> None:
        self._tables, self._keys = np.empty(0, np.uint16), np.empty(0, np.uint64)
        self._there = np.empty(0, np.bool_)

    def move(self, moves: GroupMoves) -> None:
        """Go on to the next window."""
        self._there[moves.leave_slots] = False
        self._tables, self._keys = grown(self._tables, moves.capacity), grown(self._keys, moves.capacity)
        self._there = grown(self._there, moves.capacity)
        self._tables[moves.enter_slots], self._keys[moves.enter_slots] = moves.enter.tables, moves.enter.keys
        self._there[moves.enter_slots] = True

    @property
    def keys(self) -> KeySet:
        return KeySet(self._tables[self._there], self._keys[self._there])


class _Simulated:
    """The tiers of all servers for one budget, over a sample of the keys."""

    def __init__(self, job: JobSpec, storage: StorageSpec, *, sample: float, folder: Path) -> None:
        self._sample, self._servers = sample, job.servers.count
        self.memory_bytes = storage.memory_bytes
        ssd_bytes = max(int(storage.ssd_bytes * self._servers * sample), len(job.groups) << 24)
        memory = max(int(storage.memory_bytes * self._servers * sample), _least(job, ssd_bytes))
        tiers = StorageSpec(memory_bytes=memory, directories=(str(folder),), ssd_bytes=ssd_bytes, io=DiskIo.CACHED)
        plain = tuple(replace(group, admission=None, eviction=None) for group in job.groups)
        self.stores = open_rows(replace(job, groups=plain, storage=tiers, servers=RoleSpec()))
        budgets = zip(
            job.groups,
            budget_parts(job.groups, storage.memory_bytes),
            budget_parts(job.groups, storage.ssd_bytes),
            strict=True,
        )
        for number, (group, memory_bytes, of_ssd) in enumerate(budgets):
            whole = _budget(group, memory_bytes=memory_bytes, ssd_bytes=of_ssd)
            self._store(number).tiers.budget = SampledBudget(
                whole=whole,
                share=sample * job.servers.count,
                empty_index=self._store(number).use().ssd.index_bytes,
                empty_leases=LeaseTable(seeds=mixed_seeds([group]), shift=np.uint64(0)).memory_bytes,
            )

    def lease(self, group: int, keys: KeySet) -> None:
        self._store(group).lease(keys, holder=1)

    def give_back(self, group: int, keys: KeySet) -> None:
        store = self._store(group)
        store.give_back(keys, np.zeros((len(keys), store.width), np.float32), holder=1)

    def step(self, group: int, keys: KeySet, *, dim: int) -> None:
        """A pull and a push."""
        self._store(group).pull(keys, create=Create.YES)
        self._store(group).push(keys, np.zeros((len(keys), dim), np.float32))

    def prediction(self, samples: int) -> TierPrediction:
        counts = added_up(store.use() for store in self.stores if isinstance(store, TieredStore))
        whole = {name: count / self._sample for name, count in counts.items()}
        found = counts["memory_hits"] + counts["ssd_hits"]
        return TierPrediction(
            memory_bytes=self.memory_bytes,
            memory_hit_rate=counts["memory_hits"] / max(found, 1),
            memory_rows=int(whole["memory_rows"]),
            ssd_rows=int(whole["ssd_rows"]),
            ssd_hits_per_sample=whole["ssd_hits"] / max(samples, 1),
            disk_read_bytes_per_sample=whole["disk_read_bytes"] / max(samples, 1),
            disk_written_bytes_per_sample=whole["disk_written_bytes"] / max(samples, 1),
            write_amplification=counts["disk_written_bytes"] / max(counts["evicted_bytes"], 1),
            disk_bytes=int(whole["disk_bytes"]),
            samples=samples,
        )

    def close(self) -> None:
        for store in self.stores:
            store.close()

    def _store(self, group: int) -> TieredStore:
        store = self.stores[group]
        assert isinstance(store, TieredStore)
        return store


def simulate_tiers(
    job: JobSpec,
    windows: Iterable[TowerWindow],
    *,
    budgets: Sequence[StorageSpec],
    sample: float,
    folder: Path | None = None,
) -> tuple[TierPrediction, ...]:
    """Run the trace against every budget (of one server; the job says how many there are). sample: share of the keys.

    folder: where the sampled rows' files go meanwhile; default, the temporary one. With job.window 0 every step pulls
    and pushes, and the windows are of one step each. Raises CapacityError for a budget that holds no rows, PlanError
    for a sample outside (0, 1].
    """
    if not 0 < sample <= 1:
        raise PlanError(f"tiers: a sample of {sample:g} of the keys was asked for; give a share above 0, 1 at most")
    seeds = mixed_seeds(job.groups)
    working = [_WorkingSet() for _ in job.groups]
    steps = 0
    with ExitStack() as opened:
        simulated = []
        for storage in budgets:
            own = Path(opened.enter_context(tempfile.TemporaryDirectory(prefix="hetero-tiers-", dir=folder)))
            simulated.append(_Simulated(job, storage, sample=sample, folder=own))
            opened.callback(simulated[-1].close)
        for window in windows:
            steps += len(window.specs)
            for group, moves in enumerate(window.moves):
                enter = _sampled(moves.enter, seeds, sample)
                leave = _sampled(moves.leave, seeds, sample)
                working[group].move(moves)
                for tiers in simulated:
                    if job.window:
                        tiers.lease(group, enter)
                        tiers.give_back(group, leave)
                    elif window.specs:
                        tiers.step(group, _sampled(working[group].keys, seeds, sample), dim=job.groups[group].dim)
        return tuple(tiers.prediction(steps * job.batch_size) for tiers in simulated)


def _sampled(keys: KeySet, seeds: U64, sample: float) -> KeySet:
    """Those of the sample, by a hash of their own: the row's hash decides buckets and shards."""
    if sample >= 1:
        return keys
    drawn = mix64_reference(mix64_reference(keys.keys ^ seeds[keys.tables]) + GOLDEN)
    taken = drawn < np.uint64(int(sample * 2.0**64))
    return keys[taken]


def _budget(group: GroupSpec, *, memory_bytes: int, ssd_bytes: int) -> TierBudget:
    width = group_width(group)
    layout = Layout.fitting(width=width, identity=0, memory_bytes=memory_bytes, ssd_bytes=ssd_bytes)
    return TierBudget(
        total_bytes=memory_bytes,
        ssd_bytes=buffer_bytes(layout),
        width=width,
        names=", ".join(table.name for table in group.tables),
    )


def _least(job: JobSpec, ssd_bytes: int) -> int:
    """A budget under which the sample's stores can work at all."""
    needed = max(
        budget_for(group, rows=4096, ssd_rows=_LEASED_ROWS, leased_rows=_LEASED_ROWS, ssd_bytes=ssd_bytes)
        for group in job.groups
    )
    return 2 * len(job.groups) * needed
