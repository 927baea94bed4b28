"""The job file of a deep model, as typed sections; a sibling of `pipelines.job.Job`, known by its `transformer`.

job = DeepJob(
    name="shakespeare",
    text={"train": "data/shakespeare/train", "validation": "data/shakespeare/validation"},
    transformer={"layers": 4, "width": 128, "heads": 4, "context": 64},
    train={"batch_size": 12, "steps": 2000},
)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, Strict, ValidationError, model_validator

from hetero.data.masking import MaskUnit
from hetero.errors import JobError
from hetero.observe.run_folder import RESOLVED_JOB
from hetero.records.mesh import AXES, DeepPrecision, LrSchedule, PipelineSchedule, Recompute
from hetero.records.transformer import MlpKind, NormKind, Positions
from pipelines.job_yaml import dump_yaml, read_yaml
from pipelines.overrides import apply_overrides
from pipelines.problems import ListedJobError, job_problems, translate
from pipelines.problems import Path as FieldPath
from pipelines.values import Beta, Count, Flag, Fraction, Name, NotNegative, Positive, Section, Text


def _folder(value: object) -> object:
    return str(value) if isinstance(value, Path) else value


NotBelowZero = Annotated[int, Strict(), Field(ge=0)]
Folder = Annotated[Text, BeforeValidator(_folder)]


class TextData(Section):
    """Folders that `hetero data text` wrote. Relative ones are looked for here first, then beside the job file."""

    train: Folder
    validation: Folder | None = None


class TransformerSection(Section):
    """The model. hidden: width inside the MLP; default, 4 * width, of a gated one 8/3 * width up to a multiple of 32.
    kv_heads: default, heads. vocabulary_multiple: the tokenizer's ids are rounded up to a multiple of it, so that they
    divide over tensor-parallel ranks; what is added stands for no text."""

    layers: Count
    width: Count
    heads: Count
    context: Count
    kv_heads: Count | None = None
    hidden: Count | None = None
    positions: Positions = Positions.ROTARY
    norm: NormKind = NormKind.RMS
    mlp: MlpKind = MlpKind.GATED
    tied: Flag = False
    bias: Flag = False
    dropout: Annotated[float, Strict(), Field(ge=0, lt=1)] = 0.0
    rotary_base: Positive = 10_000.0
    init_std: Positive = 0.02
    vocabulary_multiple: Count = 8

    @model_validator(mode="before")
    @classmethod
    def _sizes(cls, raw: object) -> object:
        """kv_heads and hidden by the others."""
        if not isinstance(raw, Mapping):
            return raw
        filled = dict(raw)
        if filled.get("kv_heads") is None:
            filled["kv_heads"] = raw.get("heads")
        width = raw.get("width")
        if filled.get("hidden") is None and isinstance(width, int):
            gated = raw.get("mlp", MlpKind.GATED) in (MlpKind.GATED, MlpKind.GATED.value)
            filled["hidden"] = -(-width * 8 // 96) * 32 if gated else 4 * width
        return filled


class MaskingSection(Section):
    """Makes the model a masked one: `share` of the tokens are hidden, one by one, by whole words, or by spans."""

    unit: MaskUnit = MaskUnit.TOKEN
    share: Annotated[float, Strict(), Field(gt=0, lt=1)] = 0.15


class DeepOptimizer(Section):
    """AdamW. warmup: steps of linear growth to lr; then `schedule` falls to final_lr_share * lr at the last step. clip:
    most norm of the gradient over the whole model, null for none."""

    lr: Positive = 1e-3
    beta1: Beta = 0.9
    beta2: Beta = 0.95
    eps: NotNegative = 1e-8
    weight_decay: NotNegative = 0.1
    clip: Positive | None = 1.0
    warmup: NotBelowZero = 0
    schedule: LrSchedule = LrSchedule.COSINE
    final_lr_share: Fraction = 0.1


class DeepTrain(Section):
    """batch_size: sequences of one step, over all ranks. evaluate_every, snapshot_every: in steps, 0 for the end alone.
    stop_at: end there, with the learning rate still on its way to `steps`; --from goes on.
    validation_blocks: most blocks an evaluation before the end reads. restarts: how often the run goes on from its
    newest snapshot when a rank was lost, on a smaller mesh if the cluster holds no more."""

    batch_size: Count
    steps: Count
    stop_at: Count | None = None
    precision: DeepPrecision = DeepPrecision.FP32
    evaluate_every: NotBelowZero = 0
    validation_blocks: Count = 256
    snapshot_every: NotBelowZero = 0
    keep_snapshots: Count = 2
    restarts: NotBelowZero = 0


class MeshSection(Section):
    """Ranks along each axis, and what is done on them; docs/deep.md says what goes together."""

    pp: Count = 1
    dp: Count = 1
    shard: Count = 1
    tp: Count = 1
    order: tuple[Literal["pp", "dp", "shard", "tp"], ...] = AXES  # type: ignore[assignment]
    sharding: Annotated[int, Strict(), Field(ge=1, le=3)] = 1
    schedule: PipelineSchedule = PipelineSchedule.ONE_F_ONE_B
    stages_per_rank: Count = 1
    blocks_per_stage: tuple[Count, ...] | None = None
    micro_batches: Count = 1
    recompute: Recompute = Recompute.NONE


class DeepRunSection(Section):
    """folder: default, `runs/<job's name>`. threads: of each rank. device: `auto` takes CUDA devices where there are
    any. deadline_s: how long a rank waits for another before the run fails with the other's name."""

    folder: str = ""
    threads: Count = 1
    device: Literal["auto", "cpu", "cuda"] = "auto"
    deadline_s: Positive = 60.0


class DeepJob(Section):
    """The whole job file of a deep model. Raises JobError, listing everything wrong."""

    name: Name
    seed: Annotated[int, Strict(), Field(ge=0, lt=1 << 62)] = 0
    text: TextData
    transformer: TransformerSection
    masking: MaskingSection | None = None
    train: DeepTrain
    optimizer: DeepOptimizer = DeepOptimizer()
    mesh: MeshSection = MeshSection()
    run: DeepRunSection = DeepRunSection()

    def __init__(self, **sections: Any) -> None:
        try:
            super().__init__(**sections)
        except ValidationError as error:
            raise job_problems(translate(error, model=DeepJob, raw=sections)) from None

    @model_validator(mode="after")
    def _named_folder(self) -> DeepJob:
        self.__dict__["run"] = self.run.model_copy(update={"folder": self.run.folder or f"runs/{self.name}"})
        return self


def is_deep(path: Path | str) -> bool:
    """Whether a job file describes a deep model. Raises JobError when it cannot be read."""
    return "transformer" in read_yaml(Path(path))[0]


def is_deep_run(run: Path) -> bool:
    """Whether a run's folder is of a deep model; False where there is no run."""
    job = Path(run) / RESOLVED_JOB
    return job.is_file() and is_deep(job)


def load_deep_job(path: Path | str, *, overrides: Sequence[str] = ()) -> DeepJob:
    """Read a job file, with `a.b=VALUE` overrides put over it.

    Relative folders of tokens that are only found beside the job file are rewritten to be found from here.
    Raises JobError, which says for every problem its path in the job and the line or override it came from.
    """
    raw, origins = read_yaml(Path(path))
    raw, origins = apply_overrides(raw, overrides, origins=origins)
    try:
        job = DeepJob(**{str(name): value for name, value in raw.items()})
    except ListedJobError as error:
        raise _located(error, origins, path) from None
    return _anchored(job, Path(path).parent)


def dump_deep(job: DeepJob) -> str:
    """The job as YAML with every default written out; loading it gives an equal job."""
    return dump_yaml(job.model_dump(mode="json"))


def _located(error: ListedJobError, origins: Mapping[FieldPath, str], path: Path | str) -> JobError:
    found = job_problems(error.problems, origins=origins)
    count = f"{len(error.problems)} errors" if len(error.problems) > 1 else "1 error"
    return JobError(f"{found}\n{count} in {path}")


def _anchored(job: DeepJob, folder: Path) -> DeepJob:
    def anchor(path: str | None) -> str | None:
        beside = None if path is None else folder / path
        return str(beside) if beside is not None and not Path(path or "").exists() and beside.exists() else path

    text = job.text.model_copy(update={"train": anchor(job.text.train), "validation": anchor(job.text.validation)})
    return job.model_copy(update={"text": text})
