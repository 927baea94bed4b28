"""All ranks of a deep run: placed by topology, met at rank 0's store, watched until the one long call of each ends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import ray
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from actors.calls import Answer
from actors.context import missing_variables
from actors.failures import Failure, failure_of, root_of
from actors.naming import NAMESPACE, Member, Role
from actors.pings import Pings
from actors.placement import end_actors
from actors.pulses import PulseRounds
from actors.rank import DeepContext, RankActor, RankNews
from hetero.errors import CapacityError, DeadlineError, PeerLostError, UserError
from hetero.loops.deep import DeepLog
from hetero.parallel.mesh import place_of
from hetero.records.deep_job import DeepJobSpec

_START_DEADLINE_S = 180.0
_LOOK_EVERY_S = 0.25
_FILE_DEADLINE_S = 600.0
_OTHERS_S = 2.0

DeepWatch = Callable[[RankNews], None]


def islands_of(job: DeepJobSpec) -> list[list[int]]:
    """Ranks that one node must hold together: equal along `pp` and `dp`, they share tensors and shards."""
    islands: dict[tuple[int, int], list[int]] = {}
    for rank in range(job.mesh.ranks):
        place = place_of(rank, job.mesh)
        islands.setdefault((place.dp, place.pp), []).append(rank)
    return [islands[key] for key in sorted(islands)]


def rank_resources(job: DeepJobSpec, *, ranks: int) -> dict[str, float]:
    """What so many ranks of one node ask Ray for."""
    resources = {"CPU": float(ranks * job.threads)}
    return resources | ({"GPU": float(ranks)} if job.device == "cuda" else {})


class RankGroup:
    """The ranks as actors `<run>/rank/<index>`. `close` ends them.

    Raises CapacityError when the cluster cannot hold them, PeerLostError or DeadlineError that names a rank which dies,
    hangs or does not start, and whatever a rank raises.
    """

    def __init__(self, context: DeepContext) -> None:
        self.context = context
        self.members: dict[Member, Any] = {}
        self._pings = Pings(self.members, deadline_s=context.job.deadline_s)
        self._rounds = PulseRounds(self.members)
        self._placement: PlacementGroup | None = None
        try:
            self._placement = _reserve(context.job)
            bundles = {rank: number for number, island in enumerate(islands_of(context.job)) for rank in island}
            for rank in range(context.job.mesh.ranks):
                member = Member(context.run, Role.RANK, rank)
                self.members[member] = self._create(member, bundles[rank], self._placement)
            self._all("ping", deadline_s=_START_DEADLINE_S)
        except BaseException:
            self.close()
            raise

    def join(self, snapshot: Path | None) -> None:
        """Let the ranks meet and build the model, from a snapshot or from its first values."""
        first = next(iter(self.members))
        rendezvous = self._begin(first, "host", deadline_s=self.context.job.deadline_s).result()
        deadline_s = self.context.job.deadline_s + _FILE_DEADLINE_S
        answers = [self._begin(member, "join", rendezvous, snapshot, deadline_s=deadline_s) for member in self.members]
        self._watch_over(answers, watch=lambda _: None)
        for answer in answers:
            answer.result()

    def train(self, *, watch: DeepWatch) -> list[DeepLog]:
        """One long call a rank; the logs in the order of ranks."""
        answers = [self._begin(member, "train", deadline_s=self.context.job.deadline_s) for member in self.members]
        self._watch_over(answers, watch=watch)
        first = next(iter(self.members))
        news: Answer[RankNews] = self._begin(first, "news", deadline_s=self.context.job.deadline_s)
        watch(replace(news.result(), pulses=self._rounds.last()))
        return [answer.result() for answer in answers]

    def pid_of(self, index: int) -> int:
        """The process of a rank, on its own machine."""
        member = list(self.members)[index]
        return int(self._begin(member, "ping", deadline_s=self.context.job.deadline_s).result())

    def close(self) -> None:
        """End all ranks and free what they held. Never raises: it runs after failures too."""
        end_actors(self.members, self._placement)
        self._placement = None

    def _begin(self, member: Member, method: str, *args: object, deadline_s: float) -> Answer[Any]:
        ref = getattr(self.members[member], method).remote(*args)
        return Answer(ref=ref, member=member, what=method, deadline_s=deadline_s)

    def _all(self, method: str, *, deadline_s: float) -> None:
        answers = [self._begin(member, method, deadline_s=deadline_s) for member in self.members]
        for answer in answers:
            answer.result()

    def _watch_over(self, answers: Sequence[Answer[Any]], *, watch: DeepWatch) -> None:
        """Wait until all calls have ended. Raises the failure that explains the others."""
        under_way = {answer.ref: answer for answer in answers}
        first = next(iter(self.members))
        news: Answer[RankNews] | None = None
        while under_way:
            done, _ = ray.wait(list(under_way), num_returns=len(under_way), timeout=_LOOK_EVERY_S)
            failures = [failure for ref in done if (failure := failure_of(under_way.pop(ref)))]
            if failures:
                raise self._explained(failures, under_way)
            self._pings.check()
            if news is None:
                news = self._begin(first, "news", deadline_s=self.context.job.deadline_s)
            elif ray.wait([news.ref], timeout=0)[0]:
                watch(replace(news.result(), pulses=self._rounds.look()))
                news = None

    def _explained(self, failures: list[Failure], under_way: dict[ray.ObjectRef, Answer[Any]]) -> Exception:
        """The failure that explains the others. Where ranks only say that another is gone or late and all are alive,
        those hang which have not failed."""
        done, _ = ray.wait(list(under_way), num_returns=len(under_way), timeout=_OTHERS_S) if under_way else ([], [])
        failures += [failure for ref in done if (failure := failure_of(under_way.pop(ref)))]
        error = root_of(failures, self.members)
        at_fault = any(error is failure.error for failure in failures) and isinstance(error, PeerLostError)
        if at_fault and under_way:
            names = ", ".join(str(answer.member) for answer in under_way.values())
            return DeadlineError(
                f"{names}: alive, but in no collective that the others were in for {self.context.job.deadline_s:g} s: "
                f"it hangs; meanwhile: {error}"
            )
        return error

    def _create(self, member: Member, bundle: int, placement: PlacementGroup) -> Any:
        job = self.context.job
        options: dict[str, Any] = {
            "name": str(member),
            "namespace": NAMESPACE,
            "num_cpus": job.threads,
            "num_gpus": 1 if job.device == "cuda" else 0,
            "max_restarts": 0,
            "max_task_retries": 0,
            "concurrency_groups": {"control": 1},
            "scheduling_strategy": PlacementGroupSchedulingStrategy(placement, bundle),
        }
        if missing := missing_variables():
            options["runtime_env"] = {"env_vars": {**missing, "OMP_NUM_THREADS": str(job.threads)}}
        try:
            return cast(Any, ray.remote(**options))(RankActor).remote(self.context, member)
        except ValueError as error:
            raise UserError(
                f"a run named `{self.context.run}` is alive on this cluster ({member} exists); stop it, or give this "
                "run another folder name"
            ) from error


def _reserve(job: DeepJobSpec) -> PlacementGroup:
    bundles = [rank_resources(job, ranks=len(island)) for island in islands_of(job)]
    group: PlacementGroup = placement_group(bundles, strategy="PACK")
    if group.wait(timeout_seconds=job.deadline_s):
        return group
    remove_placement_group(group)
    free = cast(Any, ray).available_resources()
    wanted = {name: sum(bundle[name] for bundle in bundles) for name in bundles[0]}
    told = ", ".join(f"{count:g} {name} ({free.get(name, 0.0):g} are free)" for name, count in wanted.items())
    island = ", ".join(f"{count:g} {name}" for name, count in bundles[0].items())
    raise CapacityError(
        f"the cluster has no room for the mesh {job.mesh.describe()} after {job.deadline_s:g} s: it asks for {told}, "
        f"and for {island} on one node, where {len(islands_of(job)[0])} ranks share tensors and shards; lower "
        "mesh.shard, mesh.tp, mesh.dp or run.threads, add nodes, or wait for other runs"
    )
