"""From the sections for text and clicks to records: tokenizers looked up, paths made absolute."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from hetero.data.token_store import read_meta
from hetero.errors import DataError
from hetero.records import PartSpec, TextFeature
from hetero.records.mesh import MeshSpec
from pipelines.joint_schema import TextColumn, TextMesh, TowerPart
from pipelines.problems import Problem, job_problems
from pipelines.schema import Features


def part_spec(part: TowerPart) -> PartSpec:
    """What a tower is built from."""
    optimizer = part.optimizer
    return PartSpec(
        name=part.name,
        optimizer=optimizer.name,
        lr=optimizer.lr,
        weight_decay=optimizer.weight_decay,
        warmup=optimizer.warmup,
        schedule=optimizer.schedule,
        steps=optimizer.steps or 1,
        final_lr_share=optimizer.final_lr_share,
        clip=optimizer.clip,
        frozen=part.freeze,
        start=part.start,
    )


def mesh_spec(mesh: TextMesh | None, *, towers: int) -> MeshSpec | None:
    """What the text half lies on; None where it is whole in every tower."""
    if mesh is None or mesh.pp * mesh.tp == 1:
        return None
    micro_batches = mesh.pp if mesh.micro_batches is None else mesh.micro_batches
    return MeshSpec(pp=mesh.pp, dp=towers, tp=mesh.tp, micro_batches=micro_batches)


def text_feature(text: TextColumn) -> TextFeature:
    """What readers read. The section's vocabulary is known, see `with_tokenizers`."""
    assert text.vocabulary is not None
    return TextFeature(
        name=text.name,
        column=text.column,
        length=text.length,
        vocabulary=text.vocabulary,
        mask=text.mask,
        separator=text.separator,
    )


def absolute_parts(parts: Sequence[TowerPart]) -> tuple[TowerPart, ...]:
    """Parts with the paths of what they begin with absolute."""

    def absolute(path: str | None) -> str | None:
        return None if path is None else os.path.abspath(os.path.expanduser(path))

    return tuple(part.model_copy(update={"start": absolute(part.start)}) for part in parts)


def with_tokenizers(features: Features, *, folder: Path) -> Features:
    """Features with the vocabularies of their tokenizers written in, so that the job needs these folders no more.

    folder: of the job file, where relative paths are tried second. Raises JobError for a folder that is no tokenizer's.
    """
    texts, problems = [], []
    for number, text in enumerate(features.text):
        if text.vocabulary is None and text.tokenizer is not None:
            place = Path(text.tokenizer).expanduser()
            place = place if place.exists() or not (folder / place).exists() else folder / place
            try:
                meta = read_meta(place)
            except DataError as error:
                problems.append(Problem(("features", "text", number, "tokenizer"), str(error)))
                continue
            found = {"vocabulary": meta.vocabulary, "mask": text.mask if text.mask is not None else meta.mask}
            text = text.model_copy(update={**found, "tokenizer": os.path.abspath(place)})
        texts.append(text)
    if problems:
        raise job_problems(problems)
    return features.model_copy(update={"text": tuple(texts)})
