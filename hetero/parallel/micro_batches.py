"""Forward and backward of a step's micro-batches on one rank: plainly, or as its place in a pipeline."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining._backward import stage_backward
from torch.distributed.pipelining.schedules import (
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
    ScheduleZBVZeroBubble,
)

from hetero.parallel.mesh import Mesh
from hetero.parallel.parts import rank_of_stage
from hetero.parallel.sharding import activation_dtype, prepare_micro_batch, split_again
from hetero.records.mesh import MeshSpec, PipelineSchedule
from hetero.towers.transformer import Transformer

LossOf = Callable[[Tensor, Tensor], Tensor]
"""(a last part's output, targets) -> the loss to take gradients of."""

_SCHEDULES: dict[PipelineSchedule, Callable[..., Any]] = {
    PipelineSchedule.GPIPE: ScheduleGPipe,
    PipelineSchedule.ONE_F_ONE_B: Schedule1F1B,
    PipelineSchedule.INTERLEAVED: ScheduleInterleaved1F1B,
    PipelineSchedule.ZERO_BUBBLE: ScheduleInterleavedZeroBubble,
    PipelineSchedule.ZBV: ScheduleZBVZeroBubble,
}


class MicroBatches(Protocol):
    """Runs this rank's part of a step. tokens, targets: int64 [b, T], this data way's share of the batch."""

    def gradients(self, tokens: Tensor, targets: Tensor, *, loss_of: LossOf) -> Tensor | None:
        """Sum gradients into the parameters; the sum of losses where the last part is, None elsewhere."""

    def loss(self, tokens: Tensor, targets: Tensor, *, loss_of: LossOf) -> Tensor | None:
        """Forward only."""

    @property
    def bubble(self) -> float | None:
        """Share of the last `gradients` that this rank spent waiting for other stages, [0, 1]; None where there are
        none, and on devices, whose work is under way when a call returns."""

    @property
    def waited_s(self) -> float:
        """Seconds of the last `gradients` that `bubble` is the share of; 0 where that is None."""


class InTurn:
    """The whole model on this rank's device: micro-batch after micro-batch."""

    bubble = None
    waited_s = 0.0

    def __init__(self, part: Transformer, spec: MeshSpec) -> None:
        self._part = part
        self._spec = spec

    def gradients(self, tokens: Tensor, targets: Tensor, *, loss_of: LossOf) -> Tensor:
        count = self._spec.micro_batches
        total: Tensor | None = None
        for number, (inputs, wanted) in enumerate(zip(tokens.chunk(count), targets.chunk(count), strict=True)):
            prepare_micro_batch(self._part, self._spec, last=number == count - 1)
            loss = loss_of(self._part(inputs), wanted)
            loss.backward()  # type: ignore[no-untyped-call]
            total = loss.detach() if total is None else total + loss.detach()
        assert total is not None
        return total

    @torch.no_grad()
    def loss(self, tokens: Tensor, targets: Tensor, *, loss_of: LossOf) -> Tensor:
        count = self._spec.micro_batches
        losses = [loss_of(self._part(x), y) for x, y in zip(tokens.chunk(count), targets.chunk(count), strict=True)]
        split_again([self._part])
        return torch.stack(losses).sum()


class Pipelined:
    """This rank's stages of a pipeline, run by one of torch's schedules."""

    def __init__(self, parts: Mapping[int, Transformer], mesh: Mesh, *, sequences: int, context: int) -> None:
        """sequences: of one micro-batch."""
        self._parts = dict(sorted(parts.items()))
        self._mesh = mesh
        self._spec = mesh.spec
        self._shape = (sequences, context // self._spec.tp, next(iter(parts.values())).spec.width)
        self._loss_of: LossOf | None = None
        self._busy = _Busy()
        self._took_s = 0.0
        stages = [self._stage(number, part, (sequences, context)) for number, part in self._parts.items()]
        schedule = _SCHEDULES[self._spec.schedule]
        self._schedule = schedule(
            stages if self._spec.schedule.looped else stages[0],
            self._spec.micro_batches,
            loss_fn=lambda output, wanted: self._wanted_loss(output, wanted),
            scale_grads=False,
        )

    def gradients(self, tokens: Tensor, targets: Tensor, *, loss_of: LossOf) -> Tensor | None:
        self._loss_of = loss_of
        self._busy.seconds, started = 0.0, time.perf_counter()
        try:
            return self._run(tokens, targets)
        finally:
            self._took_s = time.perf_counter() - started

    @property
    def bubble(self) -> float | None:
        if self._mesh.device.type != "cpu" or self._took_s == 0.0:
            return None
        return max(0.0, 1.0 - self._busy.seconds / self._took_s)

    @property
    def waited_s(self) -> float:
        return (self.bubble or 0.0) * self._took_s

    def _run(self, tokens: Tensor, targets: Tensor) -> Tensor | None:
        losses: list[Tensor] = []
        inputs = (tokens,) if 0 in self._parts else ()
        if self._spec.stages - 1 in self._parts:
            self._schedule.step(*inputs, target=targets, losses=losses, return_outputs=False)
            return torch.stack([loss.detach() for loss in losses]).sum()
        self._schedule.step(*inputs, return_outputs=False)
        return None

    @torch.no_grad()
    def loss(self, tokens: Tensor, targets: Tensor, *, loss_of: LossOf) -> Tensor | None:
        """Micro-batch after micro-batch through all stages, without overlap."""
        count = self._spec.micro_batches
        losses = []
        for inputs, wanted in zip(tokens.chunk(count), targets.chunk(count), strict=True):
            output = self._through(inputs)
            if output is not None:
                losses.append(loss_of(output, wanted))
        split_again(list(self._parts.values()))
        return torch.stack(losses).sum() if losses else None

    def _through(self, inputs: Tensor) -> Tensor | None:
        group = self._mesh.group("pp")
        here = inputs
        for number, part in self._parts.items():
            before, after = number - 1, number + 1
            if number and before not in self._parts:
                here = torch.empty(self._shape, dtype=activation_dtype(self._spec.precision), device=self._mesh.device)
                dist.recv(here, group=group, group_src=rank_of_stage(self._spec, before))
            here = part(here)
            if after < self._spec.stages and after not in self._parts:
                dist.send(here.contiguous(), group=group, group_dst=rank_of_stage(self._spec, after))
        return here if self._spec.stages - 1 in self._parts else None

    def _wanted_loss(self, output: Tensor, wanted: Tensor) -> Tensor:
        assert self._loss_of is not None
        return self._loss_of(output, wanted)

    def _stage(self, number: int, part: Transformer, tokens: tuple[int, int]) -> PipelineStage:
        dtype = activation_dtype(self._spec.precision)
        between = torch.empty(self._shape, dtype=dtype, device="meta").requires_grad_()
        first = torch.empty(tokens, dtype=torch.int64, device="meta")
        vocabulary = part.spec.vocabulary // self._spec.tp
        logits = torch.empty((*tokens, vocabulary), dtype=dtype, device="meta").requires_grad_()
        return _Stage(
            part,
            self._mesh,
            number=number,
            busy=self._busy,
            takes=between if number else first,
            gives=logits if part.part.last else between,
        )


@dataclass(slots=True)
class _Busy:
    """Seconds that a rank's stages have computed."""

    seconds: float = 0.0

    @contextmanager
    def computing(self) -> Iterator[None]:
        started = time.perf_counter()
        yield
        self.seconds += time.perf_counter() - started


class _Stage(PipelineStage):
    """Reduces gradients after every micro-batch where the sharding stage says so; torch's own waits for the last."""

    def __init__(self, part: nn.Module, mesh: Mesh, *, number: int, busy: _Busy, takes: Tensor, gives: Tensor) -> None:
        super().__init__(
            part,
            number,
            mesh.spec.stages,
            mesh.device,
            input_args=(takes,),
            output_args=(gives,),
            group=mesh.group("pp"),
        )
        self._spec = mesh.spec
        self._busy = busy

    def forward_one_chunk(self, *args: Any, **kwargs: Any) -> Any:
        with self._busy.computing():
            return super().forward_one_chunk(*args, **kwargs)

    def backward_one_chunk(self, *args: Any, **kwargs: Any) -> Any:
        with self._busy.computing():
            return super().backward_one_chunk(*args, **kwargs)

    def backward_weight_one_chunk(self, *args: Any, **kwargs: Any) -> Any:
        with self._busy.computing():
            return super().backward_weight_one_chunk(*args, **kwargs)

    def backward_maybe_with_nosync(
        self, backward_type: str, bwd_kwargs: dict[str, Any], last_backward: bool = False
    ) -> Any:
        if self._spec.sharding == 1 or self._spec.shard == 1 or backward_type != "full":
            return super().backward_maybe_with_nosync(backward_type, bwd_kwargs, last_backward)
        prepare_micro_batch(self.submod, self._spec, last=last_backward)
        gradients = stage_backward(bwd_kwargs["stage_output"], bwd_kwargs["output_grads"], bwd_kwargs["input_values"])
        return gradients, None


def micro_batches_of(parts: Mapping[int, Transformer], mesh: Mesh, *, sequences: int, context: int) -> MicroBatches:
    """How this rank runs its parts. sequences: of one micro-batch."""
    if mesh.spec.pp == 1:
        return InTurn(parts[0], mesh.spec)
    return Pipelined(parts, mesh, sequences=sequences, context=context)
