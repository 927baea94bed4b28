"""Dense parameters on servers: who holds what, who opens, and updates by the tower's own optimizer."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from hetero.errors import ProtocolError
from hetero.exchange.client import LocalServer
from hetero.exchange.dense_sides import DenseClient, ServedDense
from hetero.exchange.dense_tables import DenseTables, assign
from hetero.exchange.messages import DensePart, DensePushRequest
from hetero.exchange.server import RowServer
from hetero.exchange.traffic import Traffic
from hetero.observe.spans import SpanClock
from hetero.records import JobSpec, Mode, RoleSpec
from tests.support.row_client import contract_job


def dense_job(mode: Mode = Mode.ASYNC, *, servers: int = 1) -> JobSpec:
    return replace(contract_job(servers=servers), mode=mode, towers=RoleSpec(count=2))


def part_of(*values: float) -> DensePart:
    return DensePart(names=("w",), shapes=((len(values),),), values=np.array(values, np.float32))


def push(tables: DenseTables, gradient: float, *, sequence: int, tower: int = 0) -> None:
    values = np.full(2, gradient, np.float32)
    tables.push(DensePushRequest(tower=tower, sequence=sequence, gradients=values))


@given(st.lists(st.integers(1, 1000), max_size=20), st.integers(1, 6))
def test_tensors_are_spread_by_size(sizes: list[int], servers: int) -> None:
    owners = assign(sizes, servers=servers)
    assert assign(sizes, servers=servers) == owners
    assert set(owners) <= set(range(servers))
    held = [sum(size for size, owner in zip(sizes, owners, strict=True) if owner == n) for n in range(servers)]
    if sizes:
        assert max(held) <= sum(sizes) / servers + max(sizes)


def test_the_largest_tensors_are_apart() -> None:
    assert assign([5, 100, 90, 5], servers=2) == (1, 0, 1, 1)


def test_the_first_tower_to_open_gives_the_values() -> None:
    tables = DenseTables(dense_job())
    with pytest.raises(ProtocolError, match="before a tower opened them"):
        tables.pull()
    tables.open(part_of(1.0, 2.0))
    tables.open(part_of(3.0, 4.0))
    assert tables.pull().values.tolist() == [1.0, 2.0]
    with pytest.raises(ProtocolError, match="holds dense"):
        tables.open(part_of(1.0, 2.0, 3.0))
    tables.forget()
    tables.open(part_of(3.0, 4.0))
    assert tables.pull().values.tolist() == [3.0, 4.0]


def test_a_repeated_push_is_not_applied_twice_and_a_gap_is_refused() -> None:
    tables = DenseTables(dense_job())
    tables.open(part_of(1.0, 2.0))
    push(tables, 1.0, sequence=0)
    once = tables.pull().values
    assert (once != np.array([1.0, 2.0])).all()
    push(tables, 1.0, sequence=0)
    np.testing.assert_array_equal(tables.pull().values, once)
    push(tables, 1.0, sequence=0, tower=1)
    assert (tables.pull().values != once).all()
    with pytest.raises(ProtocolError, match="push of dense gradients number 5 came, expected number 1"):
        push(tables, 1.0, sequence=5)


def test_differences_are_added() -> None:
    tables = DenseTables(dense_job(Mode.GEO))
    tables.open(part_of(1.0, 2.0))
    assert tables.exchange(np.array([0.5, -1.0], np.float32)).tolist() == [1.5, 1.0]
    assert tables.pull().values.tolist() == [1.5, 1.0]
    assert len(DenseTables(dense_job(Mode.GEO)).exchange(np.empty(0, np.float32))) == 0


def served(module: nn.Module, *, servers: int) -> tuple[ServedDense, Traffic]:
    job, traffic = dense_job(servers=servers), Traffic()
    handles = [LocalServer(RowServer(job)) for _ in range(servers)]
    client = DenseClient(module, tower=0, servers=handles, clock=SpanClock(), traffic=traffic)
    return ServedDense(client), traffic


@pytest.mark.parametrize("servers", [1, 2, 5])
def test_a_module_is_trained_on_any_number_of_servers_alike(servers: int) -> None:
    def trained(count: int) -> list[np.ndarray]:
        torch.manual_seed(0)
        module = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 1))
        dense, _ = served(module, servers=count)
        for _ in range(3):
            dense.begin()
            dense.step(_backward(module))
        dense.settle()
        dense.refresh()
        return [parameter.detach().numpy().copy() for parameter in module.parameters()]

    for one, several in zip(trained(1), trained(servers), strict=True):
        np.testing.assert_array_equal(one, several)


def test_a_gradient_that_is_not_finite_holds_the_whole_step_back() -> None:
    module = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 1))
    dense, traffic = served(module, servers=2)
    dense.begin()
    loss = _backward(module)
    *_, (name, bias) = module.named_parameters()
    assert bias.grad is not None
    bias.grad[0] = float("nan")
    before = [parameter.detach().clone() for parameter in module.parameters()]
    assert dense.step(loss).rejected == (name,) == ("1.bias",)
    assert traffic.dense_pushed == 0
    dense.begin()
    for was, now in zip(before, module.parameters(), strict=True):
        assert torch.equal(was, now)


def test_a_tower_without_dense_parameters_needs_no_server() -> None:
    dense, traffic = served(nn.Module(), servers=2)
    dense.begin()
    assert dense.step(torch.tensor(0.5)).loss == 0.5
    dense.settle()
    dense.refresh()
    assert traffic == Traffic()


def _backward(module: nn.Module) -> torch.Tensor:
    loss: torch.Tensor = module(torch.ones(2, 3)).square().mean()
    loss.backward()  # type: ignore[no-untyped-call]
    return loss


OPEN_IN = """
import sys
from dataclasses import replace
import numpy as np
from hetero.exchange.messages import DensePart
from hetero.exchange.server import RowServer
from hetero.records import Mode
from tests.support.row_client import contract_job
server = RowServer(replace(contract_job(servers=1), mode=Mode(sys.argv[1])))
server.open_dense(DensePart(names=("w",), shapes=((1,),), values=np.zeros(1, np.float32)))
print("torch" in sys.modules)
"""


@pytest.mark.parametrize(("mode", "loads"), [(Mode.GEO, "False"), (Mode.ASYNC, "True")])
def test_a_server_loads_torch_in_async_alone(mode: Mode, loads: str) -> None:
    """Torch costs a server memory and time; in a process of its own, as this one has it."""
    command = [sys.executable, "-c", OPEN_IN, mode.value]
    root = Path(__file__).parents[3]
    ended = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=100, check=True)
    assert ended.stdout.strip() == loads
