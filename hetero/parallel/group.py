"""The group of a job's towers: one collective per step sums dense gradients, loss and flags in rank order.

A group of one needs no collective and runs the same code. Only a tower's step thread may call these methods: ranks
match collectives by their order, which two threads would shuffle.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol

import torch
import torch.distributed as dist

from hetero.errors import DeadlineError, PeerLostError, ProtocolError


@dataclass(frozen=True, slots=True)
class Rendezvous:
    """Where the ranks of a group find each other: host and port of rank 0's store."""

    host: str
    port: int


class TowerGroup(Protocol):
    """The towers that train one model together."""

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    def sum_(self, values: torch.Tensor) -> None:
        """Replace `values` (float32, any shape, equal on all ranks) by its sum over the ranks.

        Raises PeerLostError or DeadlineError when a rank is gone or late.
        """

    def exchange(self, rows: torch.Tensor, send: list[int], receive: list[int]) -> torch.Tensor:
        """Send each rank its part of `rows` float32 [sum(send), E], in rank order; returns [sum(receive), E], likewise.

        Raises as `sum_` does.
        """

    def close(self) -> None: ...


class SoleTower:
    """A group of one."""

    rank = 0
    size = 1

    def sum_(self, values: torch.Tensor) -> None:
        """Sum over one rank: nothing to do."""

    def exchange(self, rows: torch.Tensor, send: list[int], receive: list[int]) -> torch.Tensor:
        return rows

    def close(self) -> None:
        """Nothing to release."""


class CollectiveGroup:
    """A group over torch.distributed: Gloo for tensors in host memory, NCCL for CUDA devices of one kind.

    A collective that begins while another thread is in one raises ProtocolError.
    """

    def __init__(self, group: dist.ProcessGroup | None, *, rank: int, size: int, deadline_s: float) -> None:
        """group: of these ranks; None for the whole world, which is there already."""
        self._group = group
        self._rank = rank
        self._size = size
        self._deadline_s = deadline_s
        self._busy = threading.Lock()

    @classmethod
    def meet(
        cls, rendezvous: Rendezvous, *, rank: int, size: int, deadline_s: float, device: torch.device
    ) -> CollectiveGroup:
        """The group of all ranks that come to `rendezvous`. Raises DeadlineError when they do not."""
        timeout = timedelta(seconds=deadline_s)
        try:
            store = dist.TCPStore(  # type: ignore[attr-defined]
                rendezvous.host, rendezvous.port, world_size=size, is_master=rank == 0, timeout=timeout
            )
            backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
            dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=timeout)
        except (RuntimeError, dist.DistError) as error:
            raise DeadlineError(
                f"tower {rank} of {size}: the group did not come together at {rendezvous.host}:{rendezvous.port} "
                f"within {deadline_s:g} s: {error}"
            ) from error
        return cls(None, rank=rank, size=size, deadline_s=deadline_s)

    @property
    def rank(self) -> int:
        return self._rank

    @property
    def size(self) -> int:
        return self._size

    def sum_(self, values: torch.Tensor) -> None:
        with self._collective("the sum over all towers"):
            dist.all_reduce(values, group=self._group)

    def exchange(self, rows: torch.Tensor, send: list[int], receive: list[int]) -> torch.Tensor:
        received = torch.empty((sum(receive), rows.shape[1]), dtype=rows.dtype, device=rows.device)
        with self._collective("the exchange of rows with all towers"):
            dist.all_to_all_single(
                received, rows, output_split_sizes=receive, input_split_sizes=send, group=self._group
            )
        return received

    def close(self) -> None:
        if dist.is_initialized():
            dist.destroy_process_group()

    @contextmanager
    def _collective(self, what: str) -> Iterator[None]:
        if not self._busy.acquire(blocking=False):
            raise ProtocolError(
                f"tower {self._rank} of {self._size}: {what} was begun while another thread is in a collective; "
                "only the step thread may issue them"
            )
        try:
            yield
        except (RuntimeError, dist.DistError) as error:
            raise PeerLostError(
                f"tower {self._rank} of {self._size}: {what} did not finish within {self._deadline_s:g} s; another "
                f"tower is gone or late: {error}"
            ) from error
        finally:
            self._busy.release()


def free_rendezvous(host: str) -> Rendezvous:
    """A port that is free on this machine now; called where rank 0 runs."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        return Rendezvous(host, probe.getsockname()[1])
