"""Exported towers: every built-in one gives the trained module's scores from torch's own operations, at any shape."""

from __future__ import annotations

import io
from collections.abc import Mapping

import pytest
import torch
from torch import Tensor, nn

from hetero.errors import TowerError
from hetero.records import Pooling, TowerSpec
from hetero.towers.embeddings import Embeddings, TowerInputs, embed, tower_inputs
from hetero.towers.export import export_tower
from hetero.towers.registry import build_tower, build_tower_class
from tests.unit.towers.tower_batches import Lookup, Sample, make_sample

WIDE = (Lookup("w_user", 0), Lookup("w_tags", 0, Pooling.MEAN))
DEEP = (Lookup("user", 1), Lookup("item", 1), Lookup("tags", 1, Pooling.MEAN), Lookup("history", 1, Pooling.NONE))
CASES: Mapping[str, tuple[tuple[Lookup, ...], dict[str, object]]] = {
    "logistic_regression": (WIDE, {}),
    "fm": ((*WIDE, *DEEP), {}),
    "wide_and_deep": ((*WIDE, *DEEP), {"hidden": [16, 8]}),
    "deepfm": ((*WIDE, *DEEP), {"hidden": [16], "dropout": 0.5}),
    "dlrm": ((*WIDE, *DEEP), {"bottom": [16], "top": [16, 8]}),
    "dcn_v2": ((*WIDE, *DEEP), {"hidden": [16], "rank": 2, "structure": "parallel", "norm": "batch"}),
    "din": ((*WIDE, *DEEP), {"pairs": [["item", "history"]], "hidden": [16], "attention_hidden": [8]}),
}
OTHER_CASES: Mapping[str, tuple[str, dict[str, object]]] = {
    "din with softmax": ("din", {"pairs": [["item", "history"]], "attention": "softmax", "norm": "layer"}),
    "dcn_v2 stacked": ("dcn_v2", {"cross_layers": 2, "hidden": []}),
}


def _sample(lookups: tuple[Lookup, ...], *, rows: int, seed: int, single: bool = False) -> Sample:
    return make_sample(lookups, dims=(1, 4), dense=3, rows=rows, seed=seed, single=single, weighted=not single)


def _scores_of(program: torch.export.ExportedProgram, sample: Sample, embeddings: Embeddings) -> Tensor:
    """Through a saved and loaded archive, as a loader in another process does it."""
    archive = io.BytesIO()
    torch.export.save(program, archive)
    archive.seek(0)
    loaded = torch.export.load(archive).module()
    blocks = list(embeddings.blocks)
    names = [
        [spec.name for spec in sample.job.lookups if spec.group == g and spec.pooling is Pooling.NONE] for g in (0, 1)
    ]
    sequences = [[embeddings[name] for name in group] for group in names]
    masks = [[embeddings.mask(name) for name in group] for group in names]
    scores: Tensor = loaded(torch.from_numpy(sample.batch.dense), blocks, sequences, masks)
    return scores


def _check(tower: str, lookups: tuple[Lookup, ...], args: dict[str, object]) -> None:
    first = _sample(lookups, rows=5, seed=0)
    module = build_tower(TowerSpec(name=tower, args=args), tower_inputs(first.job), seed=1)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    module.train()
    program = export_tower(module, first.job)
    assert module.training
    module.eval()
    for rows, seed, single in ((5, 0, False), (1, 1, False), (64, 2, False), (3, 3, True)):
        sample = _sample(lookups, rows=rows, seed=seed, single=single)
        with torch.no_grad():
            embeddings = embed(sample.batch, [torch.from_numpy(part) for part in sample.rows], sample.layout)
            logits = module(torch.from_numpy(sample.batch.dense), embeddings).reshape(rows)
            torch.testing.assert_close(
                _scores_of(program, sample, embeddings), torch.sigmoid(logits), rtol=0.0, atol=1e-6
            )


@pytest.mark.slow
@pytest.mark.parametrize("tower", CASES)
def test_an_exported_tower_scores_as_the_module_does(tower: str) -> None:
    lookups, args = CASES[tower]
    _check(tower, lookups, args)


@pytest.mark.slow
@pytest.mark.parametrize("case", OTHER_CASES)
def test_other_forms_of_the_towers_export_as_well(case: str) -> None:
    tower, args = OTHER_CASES[case]
    _check(tower, (*WIDE, *DEEP), args)


def test_the_graph_holds_no_kernel_of_ours() -> None:
    sample = _sample(CASES["dlrm"][0], rows=4, seed=0)
    module = build_tower(TowerSpec(name="dlrm", args={"bottom": [8], "top": [8]}), tower_inputs(sample.job), seed=1)
    for node in export_tower(module, sample.job).graph.nodes:
        if node.op == "call_function":
            assert str(node.target).startswith(("aten.", "<built-in")), node.target


class Branching(nn.Module):
    """A user's tower that no graph can hold."""

    def __init__(self, inputs: TowerInputs) -> None:
        super().__init__()

    def forward(self, dense: Tensor, embeddings: Embeddings) -> Tensor:
        return dense.sum(1) if float(dense.sum()) > 0 else dense.prod(1)


def test_a_tower_that_branches_on_values_is_refused_by_name() -> None:
    sample = _sample(WIDE, rows=4, seed=0)
    module = build_tower_class(Branching, tower_inputs(sample.job), seed=1)
    with pytest.raises(TowerError, match=r"tower fm: torch\.export cannot make a graph.*must not branch on values"):
        export_tower(module, sample.job)
