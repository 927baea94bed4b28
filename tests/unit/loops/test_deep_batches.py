"""What data ways of a deep model read: together always the same, whatever their number."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from hetero.data.token_store import write_tokens
from hetero.loops.deep_batches import DeepBatches
from hetero.records.deep_job import DeepJobSpec, TextSpec
from hetero.records.mesh import DeepOptimizerSpec, MeshSpec
from hetero.records.transformer import Objective, TransformerSpec
from hetero.towers.transformer import IGNORED

MODEL = TransformerSpec(layers=1, width=8, heads=1, kv_heads=1, hidden=8, vocabulary=64, context=8)


@pytest.fixture
def job(tmp_path: Path) -> DeepJobSpec:
    for part, count in (("train", 900), ("validation", 333)):
        write_tokens(tmp_path / part, [np.arange(count) % 60], tokenizer="char", vocabulary=62, mask=61)
    text = TextSpec(train=str(tmp_path / "train"), validation=str(tmp_path / "validation"), vocabulary=62, mask=61)
    return DeepJobSpec(
        name="b",
        seed=1,
        text=text,
        model=MODEL,
        mesh=MeshSpec(),
        optimizer=DeepOptimizerSpec(),
        batch_size=12,
        steps=1,
    )


def masked(job: DeepJobSpec) -> DeepJobSpec:
    model = replace(job.model, objective=Objective.MASKED)
    return replace(job, model=model, text=replace(job.text, masking="token"))


def ways_of(job: DeepJobSpec, ways: int) -> list[DeepBatches]:
    return [DeepBatches(job, way=way, ways=ways, device=torch.device("cpu")) for way in range(ways)]


@pytest.mark.parametrize("ways", [2, 3, 4])
@pytest.mark.parametrize("hides", [False, True])
def test_any_number_of_ways_reads_the_same(job: DeepJobSpec, ways: int, hides: bool) -> None:
    job = masked(job) if hides else job
    (alone,) = ways_of(job, 1)
    for cursor in (0, 12, 1200):
        whole = alone.train(cursor)
        parts = [one.train(cursor) for one in ways_of(job, ways)]
        for side in range(2):
            assert torch.equal(torch.cat([part[side] for part in parts]), whole[side])


def test_targets_of_a_causal_model_are_one_on(job: DeepJobSpec) -> None:
    tokens, targets = ways_of(job, 1)[0].train(0)
    assert torch.equal((tokens + 1) % 60, targets)


@pytest.mark.parametrize("ways", [1, 2, 4])
@pytest.mark.parametrize("most", [None, 7])
def test_evaluation_reads_every_block_once(job: DeepJobSpec, ways: int, most: int | None) -> None:
    firsts, counted, batches = [], 0, set()
    for one in ways_of(job, ways):
        shares = list(one.validation(most=most))
        batches.add(len(shares))
        for tokens, targets in shares:
            assert tokens.shape == (12 // ways, 8)
            used = (targets != IGNORED).all(dim=1)
            assert not (targets[~used] != IGNORED).any()
            counted += int(used.sum())
            firsts += tokens[used][:, 0].tolist()
    blocks = (333 - 9) // 8 + 1
    chosen = range(0, blocks, 1 if most is None else -(-blocks // most))
    assert counted == len(chosen)
    assert sorted(firsts) == sorted(8 * number % 60 for number in chosen)
    assert len(batches) == 1, "all ways run as many batches"


def test_no_validation_text_gives_no_batches(job: DeepJobSpec) -> None:
    job = replace(job, text=replace(job.text, validation=None))
    assert list(ways_of(job, 1)[0].validation(most=None)) == []
