"""Sections of the job file for models of text and clicks: texts, further labels, parts of a tower."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field, Strict, model_validator

from hetero.records.mesh import LrSchedule
from pipelines.values import Count, Flag, Fraction, Name, NotNegative, Positive, Section, Text


class TextColumn(Section):
    """A column of token ids, a list a row. column: default, the feature's name. length: tokens kept, the first.
    tokenizer: a folder that `hetero data text` or `hetero data tokens` wrote, which says vocabulary and mask; or give
    these. vocabulary: ids are below it. mask: the id shown for hidden tokens. separator: of ids in text files."""

    name: Name
    column: str = ""
    length: Count
    tokenizer: Text | None = None
    vocabulary: Count | None = None
    mask: Annotated[int, Strict(), Field(ge=0)] | None = None
    separator: Annotated[str, Strict(), Field(min_length=1, max_length=1)] = " "

    @model_validator(mode="before")
    @classmethod
    def _column_is_name(cls, raw: object) -> object:
        return {"column": raw.get("name"), **raw} if isinstance(raw, Mapping) else raw

    @model_validator(mode="after")
    def _has_vocabulary(self) -> TextColumn:
        if self.vocabulary is None and self.tokenizer is None:
            raise ValueError(
                "give `tokenizer`, the folder of the tokens' tokenizer, or `vocabulary`, its number of ids"
            )
        return self


class Task(Section):
    """A further label, learned at once with the first: a column of 0 and 1; rows where it is missing do not count for
    it. column: default, the task's name. weight: of its loss beside the first label's, which has 1."""

    name: Name
    column: str = ""
    weight: Positive = 1.0

    @model_validator(mode="before")
    @classmethod
    def _column_is_name(cls, raw: object) -> object:
        return {"column": raw.get("name"), **raw} if isinstance(raw, Mapping) else raw


class PartOptimizer(Section):
    """Optimizer of a part. weight_decay: of matrices. warmup: steps of linear growth to lr; then `schedule` falls to
    final_lr_share * lr at step `steps`. clip: most norm of the part's gradient."""

    name: Literal["adam", "adamw", "adagrad", "sgd"] = "adamw"
    lr: Positive = 1e-3
    weight_decay: NotNegative = 0.0
    warmup: Annotated[int, Strict(), Field(ge=0)] = 0
    schedule: LrSchedule = LrSchedule.CONSTANT
    steps: Count | None = None
    final_lr_share: Fraction = 0.0
    clip: Positive | None = None

    @model_validator(mode="after")
    def _schedule_has_an_end(self) -> PartOptimizer:
        if self.schedule is not LrSchedule.CONSTANT and (self.steps is None or self.steps <= self.warmup):
            raise ValueError(
                f"schedule `{self.schedule.value}` falls until step `steps`; give it, above warmup ({self.warmup})"
            )
        return self


class TowerPart(Section):
    """The parameters whose names begin with `name.`, with an optimizer of their own. freeze: they stay as they begin.
    from: a deep job's run, or a snapshot of one, whose model the part's transformer begins with."""

    name: Name
    optimizer: PartOptimizer = PartOptimizer()
    freeze: Flag = False
    start: Text | None = Field(default=None, alias="from")


class TextMesh(Section):
    """What the text half of a joint tower lies on, on Ray: `pp` pipeline stages x `tp` tensor-parallel ranks, once for
    each tower (roles.towers), which are its data ways. micro_batches: default, pp."""

    pp: Count = 1
    tp: Count = 1
    micro_batches: Count | None = None
