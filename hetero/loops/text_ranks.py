"""The ranks of a joint job's text half: built from the job alone, whoever leads and whoever follows."""

from __future__ import annotations

from typing import cast

from torch import nn

from hetero.checkpoint.pretrained import StartedPart, start_parts
from hetero.errors import JobError
from hetero.parallel.compose import check_mesh
from hetero.parallel.mesh import Mesh
from hetero.parallel.mesh_text import MeshText
from hetero.parallel.text_mesh import TextRank
from hetero.records import JobSpec
from hetero.towers.build import make_tower
from hetero.towers.joint import Joint

TEXT = "text"


def check_text_mesh(job: JobSpec, module: nn.Module) -> None:
    """Raises JobError when the tower cannot lie on the job's mesh."""
    spec = job.tower.mesh
    if spec is None:
        return
    if not isinstance(module, Joint):
        raise JobError(f"tower.mesh: {job.tower.name} has no text half; it is for the tower `joint`")
    if job.tower.args.get("masked") is not None or module.text.cls is not None:
        raise JobError("tower.mesh: texts are pooled by `mean`, without a `masked` loss, where they lie on a mesh")
    check_mesh(spec, model=module.text.spec, batch_size=spec.data_ways * spec.micro_batches)


def text_rank(job: JobSpec, module: nn.Module, *, mesh: Mesh) -> TextRank:
    """This rank's share of the text half of `module`, the job's tower, which is whole until then."""
    text = cast(Joint, module).text
    part = next((part for part in job.tower.parts if part.name == TEXT), None)
    frozen = part is not None and part.frozen
    return TextRank(text.spec, mesh=mesh, part=part or job.tower, seed=text.seed, frozen=frozen)


def put_on_mesh(job: JobSpec, *, mesh: Mesh) -> tuple[nn.Module, TextRank]:
    """A leader's tower with its text half on the mesh, and the rank."""
    module = make_tower(job)
    rank = text_rank(job, module, mesh=mesh)
    cast(Joint, module).text = MeshText(rank)  # type: ignore[assignment]
    return module, rank


def start_on_mesh(job: JobSpec, text: MeshText) -> tuple[StartedPart, ...]:
    """Let the text half begin with the model that the job names for it."""
    whole = make_tower(job)
    started = start_parts(whole, job.tower)
    if started:
        text.begin_with(cast(Joint, whole).text.transformer)
    return started
