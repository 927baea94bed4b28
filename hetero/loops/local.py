"""Everything in one process and one thread: for debugging, tests and small data. The loops are those of the actors."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import nn

from hetero.checkpoint.manifest import merge_held
from hetero.checkpoint.pretrained import StartedPart
from hetero.checkpoint.rows import read_rows, write_rows
from hetero.checkpoint.snapshot import Snapshot, SnapshotDraft
from hetero.checkpoint.tensors import read_module, write_module
from hetero.checkpoint.warm_start import open_warm_start
from hetero.errors import JobError
from hetero.exchange.client import ShardedRowClient
from hetero.exchange.lane_server import LaneServer
from hetero.exchange.leases import LeasedRows
from hetero.exchange.messages import ServerHandle
from hetero.exchange.sources import RowSource
from hetero.exchange.window_size import WindowSize
from hetero.hardware.precision import choose_precision, fast_bf16_here
from hetero.hardware.probe import peak_rss_bytes
from hetero.hardware.tower_device import tower_device
from hetero.keys.sequencer import Sequencer
from hetero.loops.batches import InlineStream
from hetero.loops.local_servers import LocalServers
from hetero.loops.local_snapshots import LocalSnapshots
from hetero.loops.modes import dense_side, pulled_source
from hetero.loops.moves import AS_SCHEDULED, ServersPlace
from hetero.loops.pace import Pace
from hetero.loops.protocols import BatchStream
from hetero.loops.pulses import PULSE_EVERY_S, RolePulses
from hetero.loops.reader import Reader, make_sequencer
from hetero.loops.results import ScoredPart, Scores
from hetero.loops.run import DataPass, RoleReport, RunProgress, RunReport, Sink, TrainOutcome, Watch
from hetero.loops.snapshots import NOWHERE, SnapshotPlace
from hetero.loops.tower import Tower, predict, score, train
from hetero.loops.tower_state import restore_tower, start_tower, warm_tower
from hetero.loops.windows import InlineWindows
from hetero.observe.metrics import Pulse
from hetero.observe.spans import SpanClock, SpanTotals, merge_totals
from hetero.optim.device_path import described
from hetero.parallel.group import SoleTower
from hetero.records import JobSpec

_WATCH_EVERY_S = 0.25


class _Takers(dict[str, RolePulses]):
    """A taker of pulses for every role that is asked for: servers may change their number."""

    def __missing__(self, role: str) -> RolePulses:
        self[role] = RolePulses(role)
        return self[role]


class LocalRun:
    """A TrainingRun in this process. Sets torch's thread count to roles.towers.threads, as a tower's process does.

    servers: the run's. Raises JobError for a job with several towers.
    """

    def __init__(self, job: JobSpec, *, make_tower: Callable[[], nn.Module]) -> None:
        if job.towers.count != 1:
            raise JobError(
                f"roles.towers: {job.towers.count} towers cannot run in one process; set roles.towers to 1 or leave "
                "out --in-process"
            )
        torch.set_num_threads(job.towers.threads)
        self.job = job
        self.place = tower_device(job.device, window_bytes=job.window_bytes)
        self.precision = choose_precision(job.precision, [fast_bf16_here(self.place.kind)])
        self.servers = LocalServers(job)
        self._snapshots = LocalSnapshots(self.servers)
        self._clock = SpanClock()
        self._window_size: WindowSize | None = None
        self._takers: dict[str, RolePulses] = _Takers()
        self._pulse_pace = Pace(PULSE_EVERY_S)
        self._reader_spans = [SpanTotals() for _ in range(job.readers.count)]
        self._lanes = [LaneServer(server) for server in self.servers.servers] if job.storage is not None else []
        handles: Sequence[ServerHandle] = self._lanes or self.servers.handles(self.servers.routing)
        self._client = ShardedRowClient(
            job, tower=0, servers=handles, clock=self._clock, connect=None if self._lanes else self.servers.handles
        )
        module = make_tower().to(self.place.device)
        dense = dense_side(
            job,
            tower=0,
            module=module,
            client=self._client,
            servers=handles,
            group=SoleTower(),
            clock=self._clock,
        )
        self._tower = Tower(
            job,
            module=module,
            client=self._client,
            dense=dense,
            clock=self._clock,
            precision=self.precision.taken,
            place=self.place,
        )

    def restore(self, snapshot: Snapshot) -> None:
        self._snapshots.load(snapshot)
        restore_tower(self._tower, snapshot, first=True)

    def warm_start(self) -> int:
        assert self.job.warm_start is not None
        snapshot = open_warm_start(self.job)
        if self.job.warm_start.dense:
            warm_tower(self._tower, snapshot)
        return self._snapshots.warm_start(snapshot)

    def start_parts(self) -> tuple[StartedPart, ...]:
        return start_tower(self._tower, self.job)

    def train(
        self,
        data: DataPass,
        *,
        watch: Watch,
        snapshots: SnapshotPlace = NOWHERE,
        servers: ServersPlace = AS_SCHEDULED,
    ) -> TrainOutcome:
        readers, sequencer = self._open(data)
        pace = Pace(_WATCH_EVERY_S)
        cuts = self._snapshots.begin(snapshots, digest=data.digest, servers=servers)

        def after_step(tower: Tower) -> None:
            cuts.look(len(tower.log.losses))
            if pace.due():
                watch(self._progress(data, sequencer, readers))

        source: RowSource
        batches: BatchStream
        if self.job.window:
            windowed = InlineWindows(self.job, sequencer, readers)
            source = LeasedRows(
                self.job,
                client=self._client,
                group=SoleTower(),
                windows=windowed,
                clock=self._clock,
                traffic=self._client.traffic,
                device=self.place.device if self.place.holds_rows else None,
            )
            self._window_size = windowed.size
            batches = windowed
        else:
            inline = InlineStream(self.job, sequencer, readers)
            source, batches = pulled_source(self.job, client=self._client, dense=self._tower.dense, batches=inline)
        cpu_before_s = time.process_time()
        log = train(self._tower, batches, source, after_step=after_step, cuts=cuts)
        cuts.moves.finish()
        watch(self._progress(data, sequencer, readers, last=True))
        self._collect(readers)
        cpu_s = {"process": time.process_time() - cpu_before_s}
        return TrainOutcome.of([log], cpu_s=cpu_s, snapshots=cuts.reports, servers=cuts.moves.reports)

    def score(self, data: DataPass, *, watch: Watch) -> Scores:
        readers, sequencer = self._open(data)
        scores = score(self._tower, InlineStream(self.job, sequencer, readers))
        watch(self._progress(data, sequencer))
        self._collect(readers)
        return scores

    def predict(self, data: DataPass, *, sink: Sink, watch: Watch, vectors: bool = False) -> None:
        readers, sequencer = self._open(data)

        def hand_on(part: ScoredPart) -> None:
            watch(self._progress(data, sequencer))
            sink((part,))

        predict(self._tower, InlineStream(self.job, sequencer, readers), sink=hand_on, vectors=vectors)
        watch(self._progress(data, sequencer))
        self._collect(readers)

    def save(self, folder: Path) -> None:
        self._wait()
        owners = self.servers.routing.owners
        with SnapshotDraft.begin(folder.parent, name=folder.name, step=len(self._tower.log.losses)) as draft:
            rows = [
                write_rows(server.stores, self.job, folder=draft.path, server=index, owners=owners)
                for index, server in enumerate(self.servers.servers)
            ]
            self._tower.dense.refresh()
            dense = write_module(self._tower.module, folder=draft.path)
            files = [dense, *(entry for own in rows for entry in own.files)]
            draft.commit(self.job, files=files, held=merge_held([own.held for own in rows]))

    def load(self, folder: Path) -> None:
        self._wait()
        snapshot = Snapshot.open(folder)
        owners = self.servers.routing.owners
        for index, server in enumerate(self.servers.servers):
            read_rows(server.stores, self.job, snapshot, server=index, owners=owners)
            server.forget_towers()
        read_module(self._tower.module, snapshot)
        self._tower.dense.reopen()

    def report(self) -> RunReport:
        peak, cpu_s = peak_rss_bytes(), time.process_time()
        readers = [
            RoleReport(name=f"reader/{index}", spans=spans, peak_rss_bytes=peak, cpu_s=spans.total_s)
            for index, spans in enumerate(self._reader_spans)
        ]
        tower = RoleReport(
            name="tower/0",
            spans=self._clock.totals(),
            peak_rss_bytes=peak,
            cpu_s=cpu_s,
            traffic=self._client.traffic.to_dict(),
            device=described(self.place),
        )
        self._wait()
        servers = tuple(server.state() for server in self.servers.servers)
        window = None if self._window_size is None else self._window_size.choice()
        return RunReport(roles=(*readers, tower), servers=servers, precision=self.precision, window=window)

    def close(self) -> None:
        for lane in self._lanes:
            lane.close()
        self.servers.close()

    def _wait(self) -> None:
        """Let the servers' threads finish what they were asked."""
        for lane in self._lanes:
            lane.wait()

    def _open(self, data: DataPass) -> tuple[list[Reader], Sequencer]:
        readers = [
            Reader(self.job, index=index, data=data.data, splits=data.splits) for index in range(self.job.readers.count)
        ]
        sequencer = make_sequencer(
            self.job,
            data=data.data,
            splits=len(data.splits),
            epochs=data.epochs,
            max_steps=data.max_steps,
            towers=1,
            start=data.start,
        )
        return readers, sequencer

    def _progress(
        self, data: DataPass, sequencer: Sequencer, readers: Sequence[Reader] = (), *, last: bool = False
    ) -> RunProgress:
        log = self._tower.log
        pulses = self._pulses(readers) if readers and (self._pulse_pace.due() or last) else ()
        return RunProgress(
            phase=data.phase,
            step=len(log.losses),
            steps_total=sequencer.estimated_steps(),
            rows=log.rows,
            loss=log.losses[-1] if log.losses else None,
            waits=self._clock.totals().waits,
            quality=sequencer.drain_quality(),
            pulses=pulses,
        )

    def _pulses(self, readers: Sequence[Reader]) -> tuple[Pulse, ...]:
        self._wait()
        takers = self._takers
        spans, traffic = self._clock.so_far(), self._client.traffic.to_dict()
        return (
            *(
                takers[f"reader/{index}"].of_role(before + reader.spans_so_far())
                for index, (before, reader) in enumerate(zip(self._reader_spans, readers, strict=True))
            ),
            *(
                takers[f"server/{index}"].of_server(server.use(), spans=SpanTotals())
                for index, server in enumerate(self.servers.servers)
            ),
            takers["tower/0"].of_tower(self._tower.log, spans=spans, traffic=traffic),
        )

    def _collect(self, readers: list[Reader]) -> None:
        for index, reader in enumerate(readers):
            self._reader_spans[index] = merge_totals([self._reader_spans[index], reader.spans()])
