"""Every built-in tower against a second, plain implementation in float64: logits and all gradients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

from hetero.errors import TowerError
from hetero.records import Pooling, TowerSpec
from hetero.towers.din import TargetAttention
from hetero.towers.embeddings import LookupInput, TowerInputs, embed, tower_inputs
from hetero.towers.fm import pairwise_dots
from hetero.towers.layers import MLP
from hetero.towers.outputs import check_logits
from hetero.towers.registry import build_tower
from tests.unit.towers.tower_batches import Lookup, Sample, Value, make_sample

WIDE_FIRST = (
    Lookup("w_user", 0),
    Lookup("user", 1),
    Lookup("w_item", 0),
    Lookup("item", 1),
    Lookup("genres", 1, Pooling.MEAN),
)
WITH_SEQUENCES = (*WIDE_FIRST, Lookup("history", 1, Pooling.NONE), Lookup("w_history", 0, Pooling.NONE))
TWO_GROUPS = (Lookup("user", 0), Lookup("item", 1), Lookup("w_user", 2))


@dataclass(frozen=True)
class Row:
    """One batch row as the plain implementations see it."""

    dense: Tensor
    value: Callable[[str], Value]
    parameters: dict[str, Tensor]
    inputs: TowerInputs

    def vector(self, lookup: LookupInput) -> Tensor:
        """The lookup's vector; of a sequence, the mean."""
        value = self.value(lookup.name)
        if isinstance(value, Tensor):
            return value
        total = torch.zeros(lookup.dim, dtype=torch.float64)
        for item in value:
            total = total + item
        return total / max(1, len(value))

    def wide(self) -> Tensor:
        total = torch.zeros((), dtype=torch.float64)
        for lookup in self.inputs.wide:
            total = total + self.vector(lookup)[0]
        return total

    def fields(self) -> list[Tensor]:
        """Vectors of the deep lookups: pooled ones first, then the sequences."""
        deep = sorted(self.inputs.deep, key=lambda lookup: lookup.is_sequence)
        return [self.vector(lookup) for lookup in deep]

    def affine(self, prefix: str, x: Tensor) -> Tensor:
        weight, bias = self.parameters[f"{prefix}.weight"], self.parameters.get(f"{prefix}.bias")
        out = []
        for i in range(weight.shape[0]):
            total = torch.zeros((), dtype=torch.float64) if bias is None else bias[i]
            for j in range(weight.shape[1]):
                total = total + weight[i, j] * x[j]
            out.append(total)
        return torch.stack(out)

    def mlp(self, prefix: str, x: Tensor, *, activation: Callable[[Tensor], Tensor], plain_last: bool) -> Tensor:
        """Alternate affine layers and activations, as many as there are weights under `prefix`."""
        layers = sorted(
            int(name.split(".")[-2])
            for name in self.parameters
            if name.startswith(f"{prefix}.layers.") and self.parameters[name].dim() == 2
        )
        for number in layers:
            x = self.affine(f"{prefix}.layers.{number}", x)
            if not (plain_last and number == layers[-1]):
                x = activation(x)
        return x

    def linear_part(self, prefix: str) -> Tensor:
        total = self.parameters[f"{prefix}.bias"][0] + self.wide()
        for i, x in enumerate(self.dense):
            total = total + self.parameters[f"{prefix}.dense_weight"][i] * x
        return total


Oracle = Callable[[Row], Tensor]


def relu(x: Tensor) -> Tensor:
    return torch.where(x > 0, x, torch.zeros_like(x))


def sigmoid(x: Tensor) -> Tensor:
    return 1 / (1 + torch.exp(-x))


def dot(a: Tensor, b: Tensor) -> Tensor:
    total = torch.zeros((), dtype=torch.float64)
    for i in range(len(a)):
        total = total + a[i] * b[i]
    return total


def plain_logistic_regression(row: Row) -> Tensor:
    return row.linear_part("linear")


def plain_fm(row: Row, prefix: str = "") -> Tensor:
    total = row.linear_part(f"{prefix}linear")
    fields = row.fields()
    for i in range(len(fields)):
        for j in range(i + 1, len(fields)):
            total = total + dot(fields[i], fields[j])
    return total


def plain_wide_and_deep(row: Row) -> Tensor:
    x = torch.cat([row.dense, *row.fields()])
    return row.linear_part("linear") + row.mlp("mlp", x, activation=relu, plain_last=True)[0]


def plain_deepfm(row: Row) -> Tensor:
    x = torch.cat([row.dense, *row.fields()])
    return plain_fm(row, "fm.") + row.mlp("mlp", x, activation=relu, plain_last=True)[0]


def plain_dlrm(row: Row) -> Tensor:
    fields, head = row.fields(), []
    if len(row.dense):
        bottom = row.mlp("bottom", row.dense, activation=relu, plain_last=False)
        fields, head = [bottom, *fields], [bottom]
    pairs = [dot(fields[i], fields[j]) for i in range(len(fields)) for j in range(i)]
    x = torch.cat([*head, torch.stack(pairs)])
    return row.mlp("top", x, activation=relu, plain_last=True)[0] + row.wide()


def plain_dcn_v2(structure: str) -> Oracle:
    def logit(row: Row) -> Tensor:
        x0 = torch.cat([row.dense, *row.fields()])
        x, layer = x0, 0
        while f"cross.cross.{layer}.weight" in row.parameters:
            low = f"cross.down.{layer}"
            inner = row.affine(low, x) if f"{low}.weight" in row.parameters else x
            x = x0 * row.affine(f"cross.cross.{layer}", inner) + x
            layer += 1
        deep = row.mlp("mlp", x if structure == "stacked" else x0, activation=relu, plain_last=False)
        joined = deep if structure == "stacked" else torch.cat([x, deep])
        return row.affine("output", joined)[0] + row.wide()

    return logit


def plain_din(attention: str) -> Oracle:
    def logit(row: Row) -> Tensor:
        target, history = row.value("item"), row.value("history")
        assert isinstance(target, Tensor)
        assert isinstance(history, list)
        scores = [
            row.mlp(
                "attentions.0.score",
                torch.cat([h, target, h - target, h * target]),
                activation=sigmoid,
                plain_last=True,
            )[0]
            for h in history
        ]
        if attention == "softmax" and scores:
            exponentials = [torch.exp(score) for score in scores]
            scores = [e / sum(exponentials) for e in exponentials]
        interest = torch.zeros_like(target)
        for score, h in zip(scores, history, strict=True):
            interest = interest + score * h
        rest = [row.vector(lookup) for lookup in row.inputs.deep if lookup.name != "history"]
        x = torch.cat([row.dense, *rest, interest])
        return row.mlp("mlp", x, activation=relu, plain_last=True)[0] + row.wide()

    return logit


SMALL: dict[str, object] = {"hidden": [5, 3]}
CASES: dict[str, tuple[str, dict[str, object], tuple[Lookup, ...], tuple[int, ...], int, Oracle]] = {
    "lr": ("logistic_regression", {}, (Lookup("a", 0), Lookup("b", 0)), (1,), 3, plain_logistic_regression),
    "lr, sparse only": ("logistic_regression", {}, (Lookup("a", 0),), (1,), 0, plain_logistic_regression),
    "lr, dense only": ("logistic_regression", {}, (), (), 2, plain_logistic_regression),
    "fm": ("fm", {}, WIDE_FIRST, (1, 4), 2, plain_fm),
    "fm, sequences": ("fm", {}, WITH_SEQUENCES, (1, 4), 0, plain_fm),
    "fm, two groups of one width": ("fm", {}, TWO_GROUPS, (4, 4, 1), 0, plain_fm),
    "wide_and_deep": ("wide_and_deep", SMALL, WITH_SEQUENCES, (1, 4), 2, plain_wide_and_deep),
    "deepfm": ("deepfm", SMALL, WITH_SEQUENCES, (1, 4), 2, plain_deepfm),
    "dlrm": ("dlrm", {"bottom": [5], "top": [4, 3]}, WIDE_FIRST, (1, 4), 3, plain_dlrm),
    "dlrm, no dense": ("dlrm", {"bottom": [], "top": [4]}, WITH_SEQUENCES, (1, 4), 0, plain_dlrm),
    "dcn_v2 stacked": ("dcn_v2", {"hidden": [5]}, WIDE_FIRST, (1, 3), 2, plain_dcn_v2("stacked")),
    "dcn_v2 parallel, low rank": (
        "dcn_v2",
        {"hidden": [5, 4], "structure": "parallel", "rank": 2, "cross_layers": 2},
        WITH_SEQUENCES,
        (1, 3),
        2,
        plain_dcn_v2("parallel"),
    ),
    "dcn_v2, unlike widths": ("dcn_v2", {"hidden": []}, TWO_GROUPS, (4, 2, 3), 0, plain_dcn_v2("stacked")),
    "din": (
        "din",
        {"pairs": [["item", "history"]], "hidden": [4], "attention_hidden": [3], "activation": "relu"},
        WITH_SEQUENCES,
        (1, 3),
        2,
        plain_din("plain"),
    ),
    "din, softmax": (
        "din",
        {
            "pairs": [["item", "history"]],
            "hidden": [4],
            "attention_hidden": [3],
            "activation": "relu",
            "attention": "softmax",
        },
        WITH_SEQUENCES,
        (1, 3),
        0,
        plain_din("softmax"),
    ),
}


def scramble(tower: nn.Module) -> None:
    """Give every parameter a value, biases that begin at 0 among them."""
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in tower.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) / 2)


def run_plain(
    sample: Sample, oracle: Oracle, parameters: dict[str, Tensor], rows: list[Tensor], inputs: TowerInputs
) -> Tensor:
    value = sample.reader(rows)
    dense = torch.from_numpy(sample.batch.dense).double()
    logits = []
    for b in range(sample.batch.rows):

        def cell(name: str, b: int = b) -> Value:
            return value(name, b)

        logits.append(oracle(Row(dense[b], cell, parameters, inputs)))
    return torch.stack(logits)


@pytest.mark.parametrize("case", CASES)
def test_logits_and_gradients_equal_the_plain_implementation(case: str) -> None:
    name, args, lookups, dims, dense, oracle = CASES[case]
    sample = make_sample(lookups, dims=dims, dense=dense, rows=5, seed=1)
    inputs = tower_inputs(sample.job)
    tower = build_tower(TowerSpec(name=name, args=args), inputs, seed=3)
    scramble(tower)
    leaves = sample.leaves()
    dense_features = torch.from_numpy(sample.batch.dense)
    logits = check_logits(tower(dense_features, embed(sample.batch, leaves, sample.layout)), 5)

    parameters = {key: p.detach().double().requires_grad_() for key, p in tower.named_parameters()}
    plain_rows = [torch.from_numpy(rows).double().requires_grad_() for rows in sample.rows]
    expected = run_plain(sample, oracle, parameters, plain_rows, inputs)
    torch.testing.assert_close(logits.double(), expected, rtol=1e-5, atol=1e-5)

    factors = torch.arange(1.0, 6.0)
    torch.autograd.backward((logits * factors).sum())
    torch.autograd.backward((expected * factors.double()).sum())
    for key, parameter in tower.named_parameters():
        plain_grad = parameters[key].grad
        assert parameter.grad is not None, key
        assert plain_grad is not None, key
        torch.testing.assert_close(parameter.grad.double(), plain_grad, rtol=1e-4, atol=1e-5, msg=key)
    for leaf, plain in zip(leaves, plain_rows, strict=True):
        assert leaf.grad is not None
        assert plain.grad is not None
        torch.testing.assert_close(leaf.grad.double(), plain.grad, rtol=1e-4, atol=1e-5)


def test_empty_histories_give_finite_logits_and_gradients() -> None:
    lookups = (Lookup("item", 0), Lookup("history", 0, Pooling.NONE))
    sample = make_sample(lookups, dims=(3,), rows=4, seed=2)
    for cell in sample.cells["history"]:
        cell.clear()
    for attention in ("plain", "softmax"):
        spec = TowerSpec(name="din", args={"pairs": [["item", "history"]], "attention": attention})
        tower = build_tower(spec, tower_inputs(sample.job), seed=0)
        leaves = [leaf.requires_grad_() for leaf in sample.leaves()]
        found = embed(sample.batch, leaves, sample.layout)
        logits = tower(torch.from_numpy(sample.batch.dense), found)
        torch.autograd.backward(logits.sum())
        assert torch.isfinite(logits).all()
        assert leaves[0].grad is not None
        assert torch.isfinite(leaves[0].grad).all()


@pytest.mark.parametrize("attention", ["plain", "softmax"])
def test_attention_reads_no_masked_cell(attention: str) -> None:
    torch.manual_seed(0)
    layer = TargetAttention(3, [4], activation="sigmoid", attention=attention)
    target, history = torch.randn(2, 3), torch.randn(2, 4, 3)
    mask = torch.tensor([[True, True, False, False], [False] * 4])
    other = torch.where(mask[:, :, None], history, torch.tensor(50.0))
    torch.testing.assert_close(layer(target, history, mask), layer(target, other, mask))
    assert not layer(target, other, mask)[1].any()


def test_sum_square_trick_equals_the_pairs() -> None:
    fields = torch.randn(3, 5, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    for b in range(3):
        pairs = [dot(fields[b, i], fields[b, j]) for i in range(5) for j in range(i)]
        torch.testing.assert_close(pairwise_dots(fields)[b], torch.stack(pairs).sum())


@pytest.mark.parametrize("norm", ["layer", "batch"])
def test_normalised_layers_equal_the_formula(norm: str) -> None:
    torch.manual_seed(0)
    mlp = MLP(3, [4], norm=norm, activation="tanh")
    x = torch.randn(6, 3)
    inner = x @ mlp.state_dict()["layers.0.weight"].T
    axis = 1 if norm == "layer" else 0
    mean, variance = inner.mean(axis, keepdim=True), inner.var(axis, keepdim=True, correction=0)
    expected = torch.tanh((inner - mean) / torch.sqrt(variance + 1e-5))
    torch.testing.assert_close(mlp(x), expected, rtol=1e-5, atol=1e-5)


SEQUENCE = LookupInput("history", 4, Pooling.NONE)
USER, ITEM, WIDE, NARROW = (
    LookupInput("user", 4),
    LookupInput("item", 4),
    LookupInput("w", 1),
    LookupInput("narrow", 2),
)


@pytest.mark.parametrize(
    ("name", "args", "inputs", "message"),
    [
        ("logistic_regression", {}, TowerInputs(1, (USER,)), r"uses lookups of dim 1 only, .*user \(dim 4\)"),
        ("logistic_regression", {}, TowerInputs(0, ()), "the job has neither"),
        ("fm", {}, TowerInputs(1, (WIDE,)), "fm needs lookups of dim 2 or more; the job has none"),
        ("fm", {}, TowerInputs(0, (USER, NARROW)), "deep lookups of one dim, got user=4, narrow=2"),
        ("wide_and_deep", {}, TowerInputs(0, (USER,)), "the job has 0 and 1"),
        ("dlrm", {}, TowerInputs(0, (USER,)), "needs two fields"),
        ("dlrm", {"bottom": "64"}, TowerInputs(2, (USER,)), "bottom must be a list of layer sizes"),
        ("dlrm", {"top": [8, 0]}, TowerInputs(2, (USER,)), r"top\[1\] must be a whole number of at least 1, got 0"),
        ("deepfm", {"dropout": 1.0}, TowerInputs(2, (USER,)), "dropout must be a number from 0 up to but not 1"),
        ("deepfm", {"norm": "group"}, TowerInputs(2, (USER,)), "norm must be one of none, layer, batch"),
        ("dcn_v2", {"structure": "row"}, TowerInputs(2, ()), "structure must be one of stacked, parallel"),
        ("dcn_v2", {"rank": True}, TowerInputs(2, ()), "rank must be a whole number"),
        ("dcn_v2", {}, TowerInputs(0, (WIDE,)), "the deep part has no inputs"),
        ("din", {"pairs": []}, TowerInputs(0, (ITEM, SEQUENCE)), "at least one"),
        ("din", {"pairs": ["item"]}, TowerInputs(0, (ITEM, SEQUENCE)), "with two lookup names each"),
        ("din", {"pairs": [["itm", "history"]]}, TowerInputs(0, (ITEM, SEQUENCE)), "nearest: item"),
        ("din", {"pairs": [["history", "item"]]}, TowerInputs(0, (ITEM, SEQUENCE)), "the first must be pooled"),
        (
            "din",
            {"pairs": [["narrow", "history"]]},
            TowerInputs(0, (NARROW, SEQUENCE)),
            "dims must be equal and at least 2, got 2 and 4",
        ),
    ],
)
def test_towers_refuse_what_they_cannot_use(
    name: str, args: dict[str, object], inputs: TowerInputs, message: str
) -> None:
    with pytest.raises(TowerError, match=message):
        build_tower(TowerSpec(name=name, args=args), inputs, seed=0)
