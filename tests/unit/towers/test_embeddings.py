"""Looked-up embeddings: values, gradients per unique row, views instead of copies, and clear refusals."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch

from hetero.errors import ProtocolError, TowerError
from hetero.records import Batch, Pooling
from hetero.towers.embeddings import (
    EmbeddingLayout,
    Embeddings,
    LookupInput,
    TowerInputs,
    UnknownLookupError,
    embed,
    tower_inputs,
)
from hetero.towers.lookup import Backend
from tests.unit.towers.tower_batches import Lookup, Sample, make_job, make_sample

MIXED = (
    Lookup("bias", 0),
    Lookup("user", 1),
    Lookup("history", 1, Pooling.NONE),
    Lookup("genres", 1, Pooling.MEAN),
    Lookup("item", 1),
    Lookup("clicks", 1, Pooling.NONE),
    Lookup("wide_history", 0, Pooling.NONE),
    Lookup("other", 2),
)
DIMS = (1, 4, 3)


def mixed(seed: int = 0, *, weighted: bool = True, single: bool = False) -> Sample:
    return make_sample(MIXED, dims=DIMS, seed=seed, weighted=weighted, single=single)


def weighted_sum(embeddings: Embeddings) -> torch.Tensor:
    """A scalar that depends on every valid cell with a different factor."""
    total = torch.zeros(())
    for number, tensor in enumerate(embeddings.values()):
        factors = torch.arange(tensor.numel(), dtype=torch.float32).reshape(tensor.shape).cos() + number
        total = total + (tensor * factors).sum()
    return total


@pytest.mark.parametrize("backend", [Backend.AUTO, Backend.TORCH])
@pytest.mark.parametrize("single", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
def test_values_and_gradients_equal_a_plain_lookup(backend: Backend, single: bool, weighted: bool) -> None:
    sample = mixed(weighted=weighted, single=single)
    leaves = sample.leaves()
    found = embed(sample.batch, leaves, sample.layout, backend=backend)
    plain = [torch.from_numpy(rows).double().requires_grad_() for rows in sample.rows]
    value = sample.reader(plain)
    total = torch.zeros((), dtype=torch.float64)
    for number, (name, tensor) in enumerate(found.items()):
        factors = torch.arange(tensor.numel(), dtype=torch.float32).reshape(tensor.shape).cos() + number
        for b in range(sample.batch.rows):
            expected = value(name, b)
            if isinstance(expected, list):
                assert found.mask(name)[b].tolist() == [p < len(expected) for p in range(tensor.shape[1])]
                for position, item in enumerate(expected):
                    torch.testing.assert_close(tensor[b, position].double(), item, rtol=1e-6, atol=1e-6)
                    total = total + (item * factors[b, position]).sum()
                assert not tensor[b, len(expected) :].any()
            else:
                torch.testing.assert_close(tensor[b].double(), expected, rtol=1e-6, atol=1e-6)
                total = total + (expected * factors[b]).sum()
    torch.autograd.backward(weighted_sum(found))
    torch.autograd.backward(total)
    for leaf, double in zip(leaves, plain, strict=True):
        assert leaf.grad is not None
        assert double.grad is not None
        torch.testing.assert_close(leaf.grad.double(), double.grad, rtol=1e-5, atol=1e-5)


def test_backends_give_the_same_bits_on_the_cpu() -> None:
    for seed in range(5):
        sample = mixed(seed)
        grads = []
        for backend in (Backend.NUMBA, Backend.TORCH):
            leaves = sample.leaves()
            torch.autograd.backward(weighted_sum(embed(sample.batch, leaves, sample.layout, backend=backend)))
            grads.append([leaf.grad for leaf in leaves])
        for numba_grad, torch_grad in zip(*grads, strict=True):
            assert numba_grad is not None
            assert torch_grad is not None
            assert torch.equal(numba_grad, torch_grad)


def test_unused_lookups_leave_zero_gradients() -> None:
    sample = mixed()
    for backend in (Backend.NUMBA, Backend.TORCH):
        leaves = sample.leaves()
        found = embed(sample.batch, leaves, sample.layout, backend=backend)
        torch.autograd.backward(found["clicks"].sum())
        assert leaves[0].grad is None
        assert leaves[1].grad is not None
        used = {local for cell in sample.cells["clicks"] for local, _ in cell}
        touched = set(leaves[1].grad.abs().sum(1).nonzero().flatten().tolist())
        assert touched == used


def test_blocks_are_handed_out_without_copies() -> None:
    sample = mixed()
    found = embed(sample.batch, sample.leaves(), sample.layout)
    block = found.blocks[1]
    assert block.shape == (6, 3, 4)
    assert found.stack(["user", "genres", "item"]) is block
    assert found.concat(["user", "genres", "item"]).data_ptr() == block.data_ptr()
    assert found["genres"].data_ptr() == block[:, 1].data_ptr()
    assert found.blocks[2].shape == (6, 1, 3)


def test_rows_are_read_without_a_copy() -> None:
    sample = make_sample([Lookup("user", 0)], dims=(4,), single=True)
    rows = torch.from_numpy(sample.rows[0])
    rows[:] = 7.0
    assert sample.rows[0][0, 0] == 7.0
    assert (embed(sample.batch, [rows], sample.layout)["user"] == 7.0).all()


def test_stack_and_concat_of_some_lookups() -> None:
    found = embed(mixed().batch, mixed().leaves(), mixed().layout)
    stacked = found.stack(["item", "user"])
    assert torch.equal(stacked, torch.stack([found["item"], found["user"]], 1))
    side_by_side = found.concat(["bias", "item", "other", "user", "genres", "item"])
    parts = [found[name] for name in ["bias", "item", "other", "user", "genres", "item"]]
    assert torch.equal(side_by_side, torch.cat(parts, 1))


def test_embeddings_are_a_mapping_in_job_order() -> None:
    found = embed(mixed().batch, mixed().leaves(), mixed().layout)
    assert list(found) == [lookup.name for lookup in MIXED]
    assert len(found) == len(MIXED)
    assert "user" in found
    assert "nobody" not in found
    assert found.get("nobody") is None


def test_inputs_of_a_job() -> None:
    job = make_job(MIXED, dims=DIMS, dense=2)
    inputs = tower_inputs(job)
    assert inputs.dense == 2
    assert inputs.lookups[2] == LookupInput("history", 4, Pooling.NONE)
    assert [lookup.name for lookup in inputs.wide] == ["bias", "wide_history"]
    assert [lookup.name for lookup in inputs.deep] == ["user", "history", "genres", "item", "clicks", "other"]


def test_an_unknown_lookup_is_named_with_the_nearest() -> None:
    found = embed(mixed().batch, mixed().leaves(), mixed().layout)
    with pytest.raises(TowerError, match="no lookup 'usr' in this job; nearest: user") as caught:
        found["usr"]
    assert isinstance(caught.value, KeyError)
    copy = pickle.loads(pickle.dumps(caught.value))
    assert type(copy) is UnknownLookupError
    assert str(copy) == str(caught.value)
    with pytest.raises(TowerError, match="the job has no lookups"):
        TowerInputs(0, ()).lookup("user")


def test_misuse_by_a_tower_is_refused() -> None:
    found = embed(mixed().batch, mixed().leaves(), mixed().layout)
    with pytest.raises(TowerError, match="'user' is pooled, so it has no mask"):
        found.mask("user")
    with pytest.raises(TowerError, match="'history' is a sequence"):
        found.stack(["user", "history"])
    with pytest.raises(TowerError, match=r"need one width; got \[3, 4\]"):
        found.stack(["user", "other"])
    with pytest.raises(TowerError, match="need one width"):
        found.stack([])
    with pytest.raises(TowerError, match="list of names is empty"):
        found.concat([])


def test_rows_that_do_not_fit_the_batch_are_refused() -> None:
    sample = mixed()
    leaves = sample.leaves()
    with pytest.raises(ProtocolError, match="2 tensors of rows and 3 groups"):
        embed(sample.batch, leaves[:2], sample.layout)
    with pytest.raises(ProtocolError, match=r"float32 rows of shape \(6, 4\), got torch.float32 \(5, 4\)"):
        embed(sample.batch, [leaves[0], leaves[1][:5], leaves[2]], sample.layout)
    with pytest.raises(ProtocolError, match=r"torch.float64"):
        embed(sample.batch, [leaves[0].double(), *leaves[1:]], sample.layout)
    short = sample.batch
    cut = Batch(labels=short.labels[:4], weights=None, dense=short.dense[:4], groups=short.groups, gauc_ids=None)
    with pytest.raises(ProtocolError, match="bags where 4 rows need"):
        embed(cut, leaves, sample.layout)


def test_evaluation_needs_no_gradients() -> None:
    sample = mixed()
    with torch.no_grad():
        found = embed(sample.batch, [torch.from_numpy(rows) for rows in sample.rows], sample.layout)
    assert not found["user"].requires_grad


def test_a_layout_knows_means_and_places() -> None:
    layout = EmbeddingLayout.from_job(make_job(MIXED, dims=DIMS, dense=0))
    assert layout.groups[1].pooled == ("user", "genres", "item")
    assert layout.groups[1].sequences == ("history", "clicks")
    np.testing.assert_array_equal(layout.groups[1].mean, [False, True, False])
