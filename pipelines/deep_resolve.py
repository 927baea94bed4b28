"""From a deep job as written to the record that ranks are built from; checks what only data and machine can say."""

from __future__ import annotations

from pathlib import Path

from hetero.data.token_store import TokenMeta, TokenStore
from hetero.errors import JobError, TowerError
from hetero.hardware.probe import accelerators
from hetero.parallel.compose import check_mesh
from hetero.records.deep_job import DeepJobSpec, TextSpec
from hetero.records.mesh import DeepOptimizerSpec, MeshSpec
from hetero.records.transformer import Objective, TransformerSpec
from hetero.towers.transformer import check_transformer
from pipelines.deep_schema import DeepJob


def resolve_deep(job: DeepJob) -> DeepJobSpec:
    """Raises JobError for what does not go together, DataError when the tokens cannot be read."""
    meta = TokenStore(Path(job.text.train)).meta
    if job.text.validation is not None:
        _same_tokenizer(meta, TokenStore(Path(job.text.validation)).meta)
    model = _model(job, meta)
    try:
        check_transformer(model)
    except TowerError as error:
        raise JobError(str(error)) from error
    mesh = MeshSpec(**dict(job.mesh), precision=job.train.precision)
    check_mesh(mesh, model=model, batch_size=job.train.batch_size)
    return DeepJobSpec(
        name=job.name,
        seed=job.seed,
        text=_text(job, meta),
        model=model,
        mesh=mesh,
        optimizer=_optimizer(job),
        batch_size=job.train.batch_size,
        steps=job.train.steps,
        stop_at=job.train.stop_at,
        evaluate_every=job.train.evaluate_every,
        validation_blocks=job.train.validation_blocks,
        snapshot_every=job.train.snapshot_every,
        keep=job.train.keep_snapshots,
        threads=job.run.threads,
        device=_device(job.run.device),
        deadline_s=job.run.deadline_s,
    )


def _model(job: DeepJob, meta: TokenMeta) -> TransformerSpec:
    section = job.transformer
    multiple = section.vocabulary_multiple
    assert section.kv_heads is not None
    assert section.hidden is not None
    return TransformerSpec(
        layers=section.layers,
        width=section.width,
        heads=section.heads,
        hidden=section.hidden,
        vocabulary=-(-meta.vocabulary // multiple) * multiple,
        context=section.context,
        kv_heads=section.kv_heads,
        objective=Objective.CAUSAL if job.masking is None else Objective.MASKED,
        positions=section.positions,
        norm=section.norm,
        mlp=section.mlp,
        tied=section.tied,
        bias=section.bias,
        dropout=section.dropout,
        rotary_base=section.rotary_base,
        init_std=section.init_std,
    )


def _text(job: DeepJob, meta: TokenMeta) -> TextSpec:
    validation = None if job.text.validation is None else str(Path(job.text.validation).absolute())
    train = str(Path(job.text.train).absolute())
    if job.masking is None:
        return TextSpec(train=train, validation=validation, vocabulary=meta.vocabulary)
    if meta.mask is None:
        raise JobError(f"masking: the tokens in {train} have no id for hidden ones; pack the text again")
    return TextSpec(
        train=train,
        validation=validation,
        vocabulary=meta.vocabulary,
        masking=job.masking.unit.value,
        mask_share=job.masking.share,
        mask=meta.mask,
    )


def _optimizer(job: DeepJob) -> DeepOptimizerSpec:
    section = job.optimizer
    if section.warmup >= job.train.steps:
        raise JobError(
            f"optimizer.warmup: {section.warmup} steps of {job.train.steps}; it must end before the last step"
        )
    return DeepOptimizerSpec(**dict(section), steps=job.train.steps)


def _device(wanted: str) -> str:
    there = any(one.kind == "cuda" for one in accelerators())
    if wanted == "auto":
        return "cuda" if there else "cpu"
    return wanted


def _same_tokenizer(train: TokenMeta, validation: TokenMeta) -> None:
    if (train.tokenizer, train.vocabulary) != (validation.tokenizer, validation.vocabulary):
        raise JobError(
            f"text.validation: was packed by {validation.tokenizer} with {validation.vocabulary} ids, the training "
            f"text by {train.tokenizer} with {train.vocabulary}; pack both with one `hetero data text`"
        )
