"""Begin a part of a tower with the model of a deep job: its transformer's parameters, by their names.

The snapshot may be of any mesh. What the part has beside the transformer keeps its first values.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path

from torch import nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.state_dict_loader import load

from hetero.checkpoint.mesh_snapshot import FACTS, SnapshotFacts, read_facts, snapshots_in
from hetero.errors import DataError, UserError
from hetero.records import PartSpec, TowerSpec
from hetero.towers.transformer import Transformer

_SNAPSHOTS = "snapshots"


@dataclass(frozen=True, slots=True, kw_only=True)
class StartedPart:
    """A part that began with a pretrained model. path: of the snapshot; step: of its run."""

    part: str
    path: str
    step: int


def start_parts(module: nn.Module, spec: TowerSpec) -> tuple[StartedPart, ...]:
    """Let the tower's parts begin with the models that the job names for them.

    Raises UserError when there is no snapshot, or its model is another, DataError when it cannot be read.
    """
    return tuple(_start(module, number, part) for number, part in enumerate(spec.parts) if part.start is not None)


def _start(module: nn.Module, number: int, part: PartSpec) -> StartedPart:
    assert part.start is not None
    place = f"tower.parts[{number}].from"
    snapshot = _newest(Path(part.start).expanduser(), place)
    inside = (layer for layer in module.get_submodule(part.name).modules() if isinstance(layer, Transformer))
    transformer = next(inside, None)
    if transformer is None:
        raise UserError(f"{place}: the tower's part `{part.name}` has no transformer that could begin with {snapshot}")
    facts = read_facts(snapshot)
    _load(transformer, snapshot, facts, place)
    return StartedPart(part=part.name, path=str(snapshot), step=facts.step)


def _newest(folder: Path, place: str) -> Path:
    """The folder itself when it is a snapshot, or a run's newest one."""
    if (folder / FACTS).is_file():
        return folder
    found = snapshots_in(folder / _SNAPSHOTS)
    if not found:
        raise UserError(f"{place}: {folder} is no snapshot of a deep job and no run that has one; train one first")
    return found[-1]


def _load(transformer: Transformer, snapshot: Path, facts: SnapshotFacts, place: str) -> None:
    state = {f"model.{name}": parameter.detach() for name, parameter in transformer.named_parameters()}
    try:
        there = FileSystemReader(str(snapshot)).read_metadata().state_dict_metadata
        for name, values in state.items():
            size = getattr(there.get(name), "size", None)
            if size != values.shape:
                raise UserError(
                    f"{place}: {name.removeprefix('model.')} is {_shown(size)} in {snapshot} and "
                    f"{_shown(values.shape)} in the tower; the snapshot's model is\n  {facts.model}\nand the tower's\n"
                    f"  {transformer.spec!r}"
                )
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "torch.distributed is disabled", UserWarning)  # one process is meant
            load(state, checkpoint_id=str(snapshot), no_dist=True)
    except (OSError, ValueError, RuntimeError, CheckpointException) as error:
        raise DataError(f"{snapshot}: cannot be read ({str(error).splitlines()[0]})") from error


def _shown(size: object) -> str:
    return "not there" if size is None else f"{list(size)}"  # type: ignore[call-overload]
