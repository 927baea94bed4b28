"""Building towers by name, import path and class: same seed, same weights; and errors that say what to change."""

from __future__ import annotations

import sys
import types
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from hetero.errors import TowerError
from hetero.records import Pooling, TowerSpec
from hetero.towers.embeddings import Embeddings, LookupInput, TextInput, TowerInputs, embed, tower_inputs
from hetero.towers.outputs import check_logits
from hetero.towers.registry import BUILT_IN, batch_coupled_layers, build_tower, build_tower_class
from tests.unit.towers.tower_batches import Lookup, make_sample

INPUTS = TowerInputs(2, (LookupInput("w", 1), LookupInput("user", 4), LookupInput("item", 4)))


class OwnTower(nn.Module):
    """What a user might write."""

    def __init__(self, inputs: TowerInputs, hidden: int, scale: float = 1.0) -> None:
        super().__init__()
        if hidden > 1000:
            raise ValueError("too wide for this test")
        self.scale = scale
        self.first = nn.Linear(inputs.dense + 4, hidden)
        self.last = nn.Linear(hidden, 1)

    def forward(self, dense: Tensor, embeddings: Embeddings) -> Tensor:
        x = torch.cat([dense, embeddings["user"]], 1)
        logit: Tensor = self.last(torch.relu(self.first(x))) * self.scale
        return logit


class NoInputs(nn.Module):
    """A class that forgot the inputs."""

    def __init__(self) -> None:
        super().__init__()


@pytest.fixture
def own_module(monkeypatch: pytest.MonkeyPatch) -> str:
    module = types.ModuleType("own_towers_for_tests")
    module.OwnTower = OwnTower  # type: ignore[attr-defined]
    module.number = 3  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return module.__name__


def test_first_weights_depend_on_the_seed_alone() -> None:
    spec = TowerSpec(name="deepfm", args={"hidden": [8]})
    torch.manual_seed(11)
    before = torch.random.get_rng_state()
    one = build_tower(spec, INPUTS, seed=4).state_dict()
    assert torch.equal(torch.random.get_rng_state(), before)
    torch.randn(7)
    same, other = build_tower(spec, INPUTS, seed=4).state_dict(), build_tower(spec, INPUTS, seed=5).state_dict()
    assert all(torch.equal(one[key], same[key]) for key in one)
    assert any(not torch.equal(one[key], other[key]) for key in one)


def test_every_built_in_tower_builds_by_name() -> None:
    history = LookupInput("history", 4, Pooling.NONE)
    for name, cls in BUILT_IN.items():
        wide_only = name == "logistic_regression"
        inputs = TowerInputs(2, INPUTS.lookups[:1] if wide_only else (*INPUTS.lookups, history))
        needed: dict[str, dict[str, object]] = {
            "din": {"pairs": [["item", "history"]]},
            "joint": {"transformer": {"layers": 1, "width": 8, "heads": 2}},
        }
        args = needed.get(name, {})
        if name == "joint":
            inputs = replace(inputs, texts=(TextInput("title", 4, 11),))
        assert type(build_tower(TowerSpec(name=name, args=args), inputs, seed=0)) is cls


def test_a_users_tower_builds_by_path_and_by_class(own_module: str) -> None:
    spec = TowerSpec(name=f"{own_module}:OwnTower", args={"hidden": 3})
    by_path = build_tower(spec, INPUTS, seed=1)
    by_class = build_tower_class(OwnTower, INPUTS, {"hidden": 3}, seed=1)
    assert isinstance(by_path, OwnTower)
    for key, value in by_path.state_dict().items():
        assert torch.equal(value, by_class.state_dict()[key])
    sample = make_sample([Lookup("user", 0)], dims=(4,), dense=2)
    logits = by_path(torch.from_numpy(sample.batch.dense), embed(sample.batch, sample.leaves(), sample.layout))
    assert check_logits(logits, sample.batch.rows).shape == (6,)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("deepfn", r"no tower 'deepfn'; nearest: deepfm.*Your own tower is named `package.module:Class`"),
        ("zzz", "there are: logistic_regression, fm"),
        ("no_such_module_anywhere:Net", "importing 'no_such_module_anywhere' failed with ModuleNotFoundError"),
        ("own_towers_for_tests:OwnTowr", "has no 'OwnTowr'; nearest: OwnTower"),
        ("own_towers_for_tests:number", "is 3; it must be a class derived from torch.nn.Module"),
    ],
)
def test_names_that_lead_nowhere(own_module: str, name: str, message: str) -> None:
    with pytest.raises(TowerError, match=message):
        build_tower(TowerSpec(name=name), INPUTS, seed=0)


@pytest.mark.parametrize(
    ("cls", "args", "message"),
    [
        (
            OwnTower,
            {"hiden": 3},
            r"OwnTower has no argument 'hiden' \(nearest: 'hidden'\); it accepts hidden, scale=1.0",
        ),
        (OwnTower, {}, "missing a required argument: 'hidden'; after the inputs it accepts hidden, scale=1.0"),
        (OwnTower, {"hidden": 2000}, "could not be built with {'hidden': 2000}: ValueError: too wide"),
        (OwnTower, {"hidden": "a"}, "could not be built with {'hidden': 'a'}: TypeError"),
        (NoInputs, {}, "too many positional arguments; after the inputs it accepts no arguments"),
        (BUILT_IN["dlrm"], {"botom": [1]}, r"DLRM has no argument 'botom' \(nearest: 'bottom'\); it accepts bottom="),
        (BUILT_IN["dlrm"], {"bottom": [0]}, r"tower DLRM: bottom\[0\] must be a whole number"),
        (int, {}, "a tower is a class derived from torch.nn.Module"),
    ],
)
def test_arguments_that_do_not_fit(cls: type[nn.Module], args: dict[str, object], message: str) -> None:
    with pytest.raises(TowerError, match=message):
        build_tower_class(cls, INPUTS, args, seed=0)


def test_logits_are_one_per_row() -> None:
    assert check_logits(torch.zeros(3, 1), 3).shape == (3,)
    assert check_logits(torch.zeros(3), 3).shape == (3,)
    assert check_logits(torch.zeros(0, 1), 0).shape == (0,)
    for wrong in (torch.zeros(2), torch.zeros(3, 2), torch.zeros(1, 3), torch.zeros(())):
        with pytest.raises(TowerError, match=r"for a batch of 3 rows; it must return logits, \[3\] or \[3, 1\]"):
            check_logits(wrong, 3)
    with pytest.raises(TowerError, match="returned shape \\[3, 2\\]"):
        check_logits(torch.zeros(3, 2), 3)
    with pytest.raises(TowerError, match=r"torch\.int64; logits must be floating point"):
        check_logits(torch.zeros(3, dtype=torch.int64), 3)
    with pytest.raises(TowerError, match="returned tuple"):
        check_logits((torch.zeros(3),), 3)


def test_layers_that_couple_rows_are_found() -> None:
    tower = build_tower(TowerSpec(name="deepfm", args={"hidden": [4], "norm": "batch"}), INPUTS, seed=0)
    assert batch_coupled_layers(tower) == ["mlp.layers.1"]
    assert batch_coupled_layers(build_tower(TowerSpec(name="deepfm", args={"norm": "layer"}), INPUTS, seed=0)) == []
    assert batch_coupled_layers(nn.SyncBatchNorm(3)) == []
    assert batch_coupled_layers(nn.BatchNorm1d(3)) == ["BatchNorm1d"]
    own = nn.Sequential(nn.Linear(2, 2))
    own.batch_coupled = True  # type: ignore[assignment]
    assert batch_coupled_layers(own) == ["Sequential"]


def test_dropout_is_a_function_of_the_seed_set_before_the_step() -> None:
    sample = make_sample([Lookup("user", 0), Lookup("item", 0)], dims=(4,), dense=2)
    args: dict[str, object] = {"hidden": [64], "dropout": 0.5}
    tower = build_tower(TowerSpec(name="deepfm", args=args), tower_inputs(sample.job), seed=0)
    found = embed(sample.batch, sample.leaves(), sample.layout)
    dense = torch.from_numpy(sample.batch.dense)

    def logits(seed: int) -> Tensor:
        torch.manual_seed(seed)
        out: Tensor = tower(dense, found)
        return out

    assert torch.equal(logits(1), logits(1))
    assert not torch.equal(logits(1), logits(2))
    tower.eval()
    assert torch.equal(logits(1), logits(2))
