"""The mesh: degrees become ranks along named axes, each with its process group, and one world that they are part of."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore, Store, TCPStore
from torch.distributed import distributed_c10d
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor.debug import _clear_sharding_prop_cache

from hetero.errors import DeadlineError, JobError
from hetero.parallel.group import Rendezvous
from hetero.records.mesh import AXES, MeshSpec

_BACKENDS = {"cpu": "gloo", "cuda": "cpu:gloo,cuda:nccl"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a rank stands on every axis."""

    pp: int
    dp: int
    shard: int
    tp: int

    @property
    def leads(self) -> bool:
        """Whether it is the first of its data way's and tensor-parallel group's ranks; one per pipeline rank."""
        return self.dp == self.shard == self.tp == 0


def place_of(rank: int, mesh: MeshSpec) -> Place:
    """The coordinates of a rank, by the mesh's order of axes."""
    coordinates, left = {}, rank
    for axis in reversed(mesh.order):
        left, coordinates[axis] = divmod(left, getattr(mesh, axis))
    return Place(**coordinates)


class Mesh:
    """This rank's view of the mesh. The same with one rank as with many. `close` ends all its process groups.

    store: where the ranks meet, see `host_store`; one rank needs none. deadline_s: of every wait for another rank.

    Raises JobError when the product of the degrees is not the number of ranks, DeadlineError when ranks do not meet.
    """

    def __init__(
        self,
        spec: MeshSpec,
        *,
        rank: int,
        size: int,
        device: torch.device,
        deadline_s: float,
        store: Store | None = None,
    ) -> None:
        if spec.ranks != size:
            raise JobError(f"mesh: {spec.describe()}, and there are {size}; change a degree or the number of ranks")
        self.spec = spec
        self.rank = rank
        self.size = size
        self.device = device
        self.place = place_of(rank, spec)
        self.deadline_s = deadline_s
        self._meet(store)
        sizes = [getattr(spec, axis) for axis in spec.order]
        ranks = torch.arange(size).reshape(sizes).permute([spec.order.index(axis) for axis in AXES]).contiguous()
        self._device_mesh = DeviceMesh(device.type, ranks, mesh_dim_names=AXES)
        for axis in AXES:
            distributed_c10d._set_pg_timeout(timedelta(seconds=deadline_s), self.group(axis))

    @property
    def whole(self) -> DeviceMesh:
        return self._device_mesh

    @property
    def data(self) -> DeviceMesh:
        """The (dp, shard) mesh: parameters are copied along the first axis and split along the second."""
        return self._device_mesh["dp", "shard"]

    @property
    def tensor(self) -> DeviceMesh:
        return self._device_mesh["tp"]

    def group(self, axis: str) -> dist.ProcessGroup:
        """The ranks that differ from this one along `axis` alone."""
        return self._device_mesh.get_group(axis)

    def sum_over_ranks(self, values: torch.Tensor) -> torch.Tensor:
        """Sum of `values` (equal shapes) over all ranks, in place."""
        if self.size > 1:
            dist.all_reduce(values)
        return values

    def close(self) -> None:
        """End all its process groups; a further mesh may be opened in this process."""
        if dist.is_initialized():
            dist.destroy_process_group()
        # its entries are found by a mesh's ranks: the next mesh of the same ranks would be given the groups that ended
        _clear_sharding_prop_cache()  # type: ignore[no-untyped-call]

    def _meet(self, store: Store | None) -> None:
        timeout = timedelta(seconds=self.deadline_s)
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)
        try:
            dist.init_process_group(
                _BACKENDS[self.device.type],
                store=HashStore() if store is None else store,
                rank=self.rank,
                world_size=self.size,
                timeout=timeout,
            )
        except (RuntimeError, dist.DistError) as error:
            raise DeadlineError(
                f"rank {self.rank} of {self.size}: the mesh did not come together within {self.deadline_s:g} s: {error}"
            ) from error


def device_named(name: str) -> torch.device:
    """`cpu`, or for `cuda` the first device that this process sees; Ray shows each rank its own."""
    return torch.device("cuda", 0) if name == "cuda" else torch.device(name)


def host_store(host: str) -> TCPStore:
    """The store where ranks meet, on a free port of this machine, `port`; it is rank 0's to hold."""
    return TCPStore(host, 0, is_master=True, wait_for_workers=False)


def store_at(rendezvous: Rendezvous) -> TCPStore:
    """The store where ranks meet, held by this process, at a port that is free here."""
    return TCPStore(rendezvous.host, rendezvous.port, is_master=True, wait_for_workers=False)


def join_store(rendezvous: Rendezvous, *, deadline_s: float) -> Store:
    """The store that another rank holds. Raises DeadlineError when nobody answers there in time."""
    try:
        return TCPStore(rendezvous.host, rendezvous.port, is_master=False, timeout=timedelta(seconds=deadline_s))
    except (RuntimeError, dist.DistError) as error:
        raise DeadlineError(
            f"rank 0's store at {rendezvous.host}:{rendezvous.port} did not answer within {deadline_s:g} s: {error}"
        ) from error
