"""DLRM against the run that the facebookresearch/dlrm README prints (MIT licence): losses and updated weights.

`dlrm_golden.json` holds those numbers, rounded to 5 digits there: data, first weights, the losses of 3 steps of plain
SGD on the squared error of the probability, and the weights after them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from hetero.records import F32, Batch, JobSpec, TowerSpec
from hetero.towers.dlrm import DLRM
from hetero.towers.embeddings import EmbeddingLayout, embed, tower_inputs
from hetero.towers.outputs import check_logits
from hetero.towers.registry import build_tower
from tests.unit.towers.tower_batches import Cell, Lookup, make_batch, make_job

TABLES = 3
TOLERANCE = 1e-5


@pytest.fixture
def golden() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((Path(__file__).parent / "dlrm_golden.json").read_text())
    return loaded


def set_layers(mlp: nn.Module, layers: list[Any]) -> None:
    linears = [layer for layer in mlp.modules() if isinstance(layer, nn.Linear)]
    assert len(linears) == len(layers)
    with torch.no_grad():
        for linear, (weight, bias) in zip(linears, layers, strict=True):
            linear.weight.copy_(torch.tensor(weight))
            linear.bias.copy_(torch.tensor(bias))


def golden_batch(golden: dict[str, Any], step: int, job: JobSpec, keys: list[list[int]]) -> Batch:
    """The step's batch; its unique rows are those of all tables' keys, in order of first occurrence per table."""
    cells: dict[str, list[Cell]] = {}
    for table in range(TABLES):
        bags = golden["sparse"][step][table]
        keys[table] = list(dict.fromkeys(key for bag in bags for key in bag))
        cells[f"t{table}"] = [[(keys[table].index(key), 1.0) for key in bag] for bag in bags]
    dense = np.array(golden["dense"][step], np.float32)
    return make_batch(job, cells, unique=[len(part) for part in keys], dense=dense, weighted=False)


def train(golden: dict[str, Any]) -> tuple[list[float], list[F32], DLRM]:
    lookups = [Lookup(f"t{table}", table) for table in range(TABLES)]
    job = make_job(lookups, dims=(2, 2, 2), dense=4, tower="dlrm")
    spec = TowerSpec(name="dlrm", args={"bottom": [3], "top": [4, 2]})
    tower = build_tower(spec, tower_inputs(job), seed=0)
    assert isinstance(tower, DLRM)
    assert tower.bottom is not None
    set_layers(tower.bottom, golden["bot"])
    set_layers(tower.top, golden["top"])
    tables = [np.array(table, np.float32) for table in golden["emb"]]
    dense_sgd = torch.optim.SGD(tower.parameters(), lr=golden["lr"])
    layout = EmbeddingLayout.from_job(job)
    losses = []
    for step in range(3):
        keys: list[list[int]] = [[] for _ in range(TABLES)]
        batch = golden_batch(golden, step, job, keys)
        rows = [torch.from_numpy(tables[t][keys[t]]).requires_grad_() for t in range(TABLES)]
        logits = check_logits(tower(torch.from_numpy(batch.dense), embed(batch, rows, layout)), batch.rows)
        loss = (torch.sigmoid(logits) - torch.tensor(golden["target"][step])).square().mean()
        dense_sgd.zero_grad()
        torch.autograd.backward(loss)
        dense_sgd.step()
        for t in range(TABLES):
            grad = rows[t].grad
            assert grad is not None
            tables[t][keys[t]] -= np.float32(golden["lr"]) * grad.numpy()
        losses.append(float(loss.detach()))
    return losses, tables, tower


def test_losses_and_weights_of_the_printed_run(golden: dict[str, Any]) -> None:
    losses, tables, tower = train(golden)
    np.testing.assert_allclose(losses, golden["losses"], atol=TOLERANCE, rtol=0)
    assert golden["losses"] == [0.451893, 0.402002, 0.27546]
    for table, expected in zip(tables, golden["updated_emb"], strict=True):
        np.testing.assert_allclose(table, expected, atol=TOLERANCE, rtol=0)
    weight, bias = golden["updated_top_last"]
    last = [layer for layer in tower.top.modules() if isinstance(layer, nn.Linear)][-1]
    np.testing.assert_allclose(last.weight.detach().numpy(), weight, atol=TOLERANCE, rtol=0)
    np.testing.assert_allclose(last.bias.detach().numpy(), bias, atol=TOLERANCE, rtol=0)
