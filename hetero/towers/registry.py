"""From a tower's name and arguments in a job to a module, and what the runtime asks of any tower.

The same seed gives the same first weights. Dropout draws from torch's global generator, which the step loop seeds by
(seed, step, tower) before each forward pass; so a replayed step drops the same values, in a user's tower too.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
from collections.abc import Iterable, Mapping

import torch
from torch import nn

from hetero.errors import HeteroError, TowerError
from hetero.records import TowerSpec
from hetero.towers.dcn_v2 import DCNv2
from hetero.towers.din import DIN
from hetero.towers.dlrm import DLRM
from hetero.towers.embeddings import TowerInputs
from hetero.towers.fm import FM, DeepFM
from hetero.towers.joint import Joint
from hetero.towers.logistic_regression import LogisticRegression
from hetero.towers.wide_and_deep import WideAndDeep

BUILT_IN: Mapping[str, type[nn.Module]] = {
    "logistic_regression": LogisticRegression,
    "fm": FM,
    "wide_and_deep": WideAndDeep,
    "deepfm": DeepFM,
    "dlrm": DLRM,
    "dcn_v2": DCNv2,
    "din": DIN,
    "joint": Joint,
}


def build_tower(spec: TowerSpec, inputs: TowerInputs, *, seed: int) -> nn.Module:
    """Build the tower a job names: a built-in name, or an import path `package.module:Class`.

    Raises TowerError for a name or path that leads nowhere, and whatever `build_tower_class` raises.
    """
    return build_tower_class(tower_class(spec.name), inputs, spec.args, seed=seed)


def build_tower_class(
    cls: type[nn.Module], inputs: TowerInputs, args: Mapping[str, object] | None = None, *, seed: int
) -> nn.Module:
    """Build `cls(inputs, **args)` on the CPU; its first weights are a function of `seed`.

    Torch's CPU generator is seeded while the tower is built and put back afterwards. The class is any
    `nn.Module` whose `forward(dense [B, D], embeddings: Embeddings)` returns logits, [B] or [B, 1], or `TowerOutput`.
    Raises TowerError when `args` do not fit the class, or when it fails to build.
    """
    args = args or {}
    if not (isinstance(cls, type) and issubclass(cls, nn.Module)):
        raise TowerError(f"a tower is a class derived from torch.nn.Module, got {cls!r}")
    _check_arguments(cls, inputs, args)
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        torch.default_generator.manual_seed(seed)
        try:
            return cls(inputs, **args)
        except HeteroError as error:
            raise TowerError(f"tower {cls.__name__}: {error}") from error
        except Exception as error:
            raise TowerError(
                f"tower {cls.__name__} could not be built with {dict(args)}: {type(error).__name__}: {error}"
            ) from error


def tower_class(name: str) -> type[nn.Module]:
    """The class of a built-in name or an import path. Raises TowerError."""
    if name in BUILT_IN:
        return BUILT_IN[name]
    if ":" not in name:
        raise TowerError(
            f"there is no tower {name!r}; {_nearest(name, BUILT_IN)}. Your own tower is named `package.module:Class`"
        )
    module_name, _, class_name = name.partition(":")
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        raise TowerError(
            f"tower {name!r}: importing {module_name!r} failed with {type(error).__name__}: {error}; is it "
            "installed, or in the folder the command was started from?"
        ) from error
    found = getattr(module, class_name, None)
    if found is None:
        classes = [key for key, value in vars(module).items() if isinstance(value, type)]
        raise TowerError(f"tower {name!r}: {module_name} has no {class_name!r}; {_nearest(class_name, classes)}")
    if not (isinstance(found, type) and issubclass(found, nn.Module)):
        raise TowerError(f"tower {name!r} is {found!r}; it must be a class derived from torch.nn.Module")
    return found


def batch_coupled_layers(module: nn.Module) -> list[str]:
    """Names of layers whose result for one row depends on the other rows of its batch, so that several towers
    would not equal one: batch normalisation (not `SyncBatchNorm`, which reduces over its group), and any
    module that says `batch_coupled = True`.
    """
    return [
        name or type(layer).__name__
        for name, layer in module.named_modules()
        if (isinstance(layer, nn.modules.batchnorm._BatchNorm) and not isinstance(layer, nn.SyncBatchNorm))
        or getattr(layer, "batch_coupled", False) is True
    ]


def _check_arguments(cls: type[nn.Module], inputs: TowerInputs, args: Mapping[str, object]) -> None:
    parameters = list(inspect.signature(cls).parameters.values())[1:]
    named = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters)
    accepts = ", ".join(p.name if p.default is p.empty else f"{p.name}={p.default!r}" for p in named) or "no arguments"
    for name in args:
        if not takes_any and name not in [p.name for p in named]:
            near = difflib.get_close_matches(name, [p.name for p in named], n=1)
            hint = f" (nearest: {near[0]!r})" if near else ""
            raise TowerError(f"tower {cls.__name__} has no argument {name!r}{hint}; it accepts {accepts}")
    try:
        inspect.signature(cls).bind(inputs, **args)
    except TypeError as error:
        raise TowerError(
            f"tower {cls.__name__} cannot be called as {cls.__name__}(inputs, **{dict(args)}): {error}; "
            f"after the inputs it accepts {accepts}"
        ) from error


def _nearest(name: str, known: Iterable[str]) -> str:
    names = list(known)
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    return f"nearest: {', '.join(near)}" if near else f"there are: {', '.join(names) or 'none'}"
