"""The collective group of towers over Gloo: sums in every process, and named errors when a rank is gone or late."""

from __future__ import annotations

import os
import threading
import time
from datetime import timedelta
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn

from hetero.errors import DeadlineError, PeerLostError, ProtocolError
from hetero.observe.spans import SpanClock
from hetero.parallel.dense import DenseUpdater
from hetero.parallel.group import CollectiveGroup, Rendezvous, SoleTower
from hetero.records import TowerSpec
from tests.support.ranks import on_ranks


def group_of(rank: int, size: int, meet: Rendezvous, *, deadline_s: float = 20.0) -> CollectiveGroup:
    return CollectiveGroup.meet(meet, rank=rank, size=size, deadline_s=deadline_s, device=torch.device("cpu"))


def summed(rank: int, size: int, meet: Rendezvous) -> np.ndarray:
    group = group_of(rank, size, meet)
    values = torch.arange(5, dtype=torch.float32) * (rank + 1)
    group.sum_(values)
    assert (group.rank, group.size) == (rank, size)
    group.close()
    return values.numpy()


def steps_of_dense(rank: int, size: int, meet: Rendezvous | None, poison: bool) -> dict[str, Any]:
    """Ten steps of a linear model on rows [0, 12), an equal share of them on each rank."""
    group = SoleTower() if meet is None else group_of(rank, size, meet)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        module = nn.Linear(3, 1)
        rows, labels = torch.randn(12, 3), torch.randn(12, 1)
    updater = DenseUpdater(module, TowerSpec(name="linear", lr=0.05), group=group, clock=SpanClock())
    mine = slice(12 * rank // size, 12 * (rank + 1) // size)
    losses, rejected = [], []
    for step in range(10):
        loss = (module(rows[mine]) - labels[mine]).square().sum() / 12
        loss.backward()
        if poison and step == 4 and rank == size - 1:
            assert module.bias.grad is not None
            module.bias.grad.fill_(float("nan"))
        outcome = updater.step(loss)
        losses.append(outcome.loss)
        rejected.append(outcome.rejected)
    group.close()
    return {"losses": losses, "rejected": rejected, "weight": module.weight.detach().numpy().copy()}


def sums_from_two_threads(rank: int, size: int, meet: Rendezvous) -> str:
    """Rank 0 begins a sum that waits for rank 1 and, in a second thread, another; returns the error of that one."""
    group = group_of(rank, size, meet)
    store = dist.distributed_c10d._get_default_store()
    told = ""
    if rank == 0:
        first = threading.Thread(target=group.sum_, args=(torch.ones(1),))
        first.start()
        deadline_t = time.monotonic() + 10
        while not group._busy.locked():
            assert time.monotonic() < deadline_t
        with pytest.raises(ProtocolError) as caught:
            group.sum_(torch.ones(1))
        told = str(caught.value)
        store.set("second thread", "refused")
        first.join(10)
    else:
        store.wait(["second thread"], timedelta(seconds=15))
        group.sum_(torch.ones(1))
    group.close()
    return told


def dies(rank: int, size: int, meet: Rendezvous) -> None:
    group = group_of(rank, size, meet)
    if rank == 1:
        os._exit(1)
    group.sum_(torch.zeros(3))


def is_late(rank: int, size: int, meet: Rendezvous) -> float:
    group = group_of(rank, size, meet, deadline_s=2.0)
    started = time.monotonic()
    if rank == 1:
        time.sleep(8)
        return 0.0
    with pytest.raises(PeerLostError, match=r"tower 0 of 2: the sum over all towers .* within 2 s"):
        group.sum_(torch.zeros(3))
    return time.monotonic() - started


def meets_alone(rank: int, size: int, meet: Rendezvous) -> None:
    group_of(rank, size + 1, meet, deadline_s=2.0)


def test_every_rank_gets_the_sum() -> None:
    for values in on_ranks(summed, size=3).values():
        np.testing.assert_array_equal(values, np.arange(5, dtype=np.float32) * 6)


@pytest.mark.parametrize("poison", [False, True])
def test_towers_step_as_one_of_the_joint_batch(poison: bool) -> None:
    alone = steps_of_dense(0, 1, None, poison)
    together = on_ranks(steps_of_dense, poison, size=2)
    for rank in range(2):
        np.testing.assert_allclose(together[rank]["losses"], alone["losses"], rtol=1e-5)
        np.testing.assert_allclose(together[rank]["weight"], alone["weight"], rtol=1e-5)
        assert together[rank]["rejected"] == alone["rejected"]
    np.testing.assert_array_equal(together[0]["weight"], together[1]["weight"])
    assert any(alone["rejected"]) == poison


def test_a_dead_rank_is_an_error_on_the_others() -> None:
    answers = on_ranks(dies, size=2, silent=1)
    assert isinstance(answers[0], PeerLostError)
    assert "tower 0 of 2" in str(answers[0])


def test_a_late_rank_is_an_error_within_the_deadline() -> None:
    assert on_ranks(is_late, size=2, silent=1)[0] < 7


def test_a_group_that_does_not_meet_is_a_deadline_error() -> None:
    answers = on_ranks(meets_alone, size=1)
    assert isinstance(answers[0], DeadlineError)
    assert "tower 0 of 2: the group did not come together" in str(answers[0])


def test_a_collective_from_a_second_thread_is_refused() -> None:
    told = on_ranks(sums_from_two_threads, size=2)
    assert "only the step thread" in told[0]
