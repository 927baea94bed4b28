"""The text half of a joint tower on a mesh: pipeline x tensor parallel within a data way, data parallel over ways.

    way 0   stage 0 -> stage 1 -> ... -> last stage, tensor rank 0: the way's *leader*, which has the rest of the tower
    way 1   likewise; gradients of texts are summed over ways

A leader trains as any tower does. Where its tower asks for vectors of texts it tells the way's other ranks, which
follow: every rank gets the texts, runs its blocks and hands states on; the same backwards. So only leaders lease rows,
read batches and know the loss. Snapshots are those of a tower that is whole: leaders gather what the ranks hold.

Shapes: U distinct texts, T tokens, D width, t tensor-parallel ranks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from enum import Enum
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.nn import functional

from hetero.errors import JobError
from hetero.parallel.dense import OptimizerShare
from hetero.parallel.group import CollectiveGroup
from hetero.parallel.mesh import Mesh, place_of
from hetero.parallel.parts import axes_split, build_parts, chunk_of, local_of, ranks_apart
from hetero.parallel.tensor import settle_gradients
from hetero.records import PartSpec, TowerSpec
from hetero.records.mesh import MeshSpec
from hetero.records.transformer import TransformerSpec
from hetero.towers.text_half import attended
from hetero.towers.transformer import Part, Transformer

_PATIENCE = timedelta(hours=24)
"""Followers wait for their leader, who may wait for readers or the driver; the driver sees who is gone."""
_CLIP_EPS = 1e-6


class Command(Enum):
    """What a leader tells its way's ranks."""

    FORWARD = "forward"
    BACKWARD = "backward"
    REDUCE = "reduce"
    APPLY = "apply"
    CLEAR = "clear"
    GATHER = "gather"
    LOAD = "load"
    STOP = "stop"


@dataclass(frozen=True, slots=True)
class _Micro:
    """One micro-batch under way: what came in, what goes on (of the last stage: this rank's sum over its tokens)."""

    taken: Tensor
    given: Tensor


@dataclass(frozen=True, slots=True)
class _Passing:
    """A forward pass whose gradient is to come. counts: tokens of each text, at least 1, [U, 1]."""

    micros: list[_Micro]
    counts: Tensor


def leader_of(spec: MeshSpec, way: int) -> int:
    """The rank that leads a data way: tensor rank 0 of the last stage."""
    return _rank_at(spec, pp=spec.pp - 1, dp=way, tp=0)


def followers(spec: MeshSpec) -> list[int]:
    """All ranks that lead no way, in order."""
    leaders = {leader_of(spec, way) for way in range(spec.dp)}
    return [rank for rank in range(spec.ranks) if rank not in leaders]


class TextRank:
    """This rank's share of a text half. All ranks of a mesh make one; followers then `follow`, leaders do what a tower
    asks for. Ranks of different ways meet in `reduce` alone.

    part: whose optimizer steps it; a TowerSpec where the text has none of its own. frozen: nothing is trained.
    Raises JobError for a mesh that texts cannot be on.
    """

    def __init__(
        self, spec: TransformerSpec, *, mesh: Mesh, part: PartSpec | TowerSpec, seed: int, frozen: bool = False
    ) -> None:
        if mesh.spec.shard > 1 or mesh.spec.stages_per_rank > 1:
            raise JobError(
                f"tower.mesh: {mesh.spec.describe()}, {mesh.spec.stages_per_rank} stages a rank; a text half has "
                "pipeline, data and tensor parallel ranks, shard 1, and one stage a rank"
            )
        self.mesh = mesh
        self.frozen = frozen
        place = mesh.place
        self._first, self._last = place.pp == 0, place.pp == mesh.spec.pp - 1
        self.leads = self._last and place.tp == 0
        (self._part,) = build_parts(spec, mesh, seed=seed, whole=False).values()
        self._width = spec.width
        self._leader = leader_of(mesh.spec, place.dp)
        self._way = _way_groups(mesh.spec)[place.dp]
        leaders = [leader_of(mesh.spec, way) for way in range(mesh.spec.dp)]
        deadline = timedelta(seconds=mesh.deadline_s)
        self.leaders = CollectiveGroup(
            dist.new_group(leaders, timeout=deadline), rank=place.dp, size=mesh.spec.dp, deadline_s=mesh.deadline_s
        )
        self._pp, self._tp, self._dp = (mesh.group(axis) for axis in ("pp", "tp", "dp"))
        self._named = list(self._part.named_parameters())
        self._pieces = [local_of(parameter) for _, parameter in self._named]
        self._clip = part.clip if isinstance(part, PartSpec) else None
        self._share = OptimizerShare.of(self._pieces, replace(part, clip=None) if isinstance(part, PartSpec) else part)
        self._under_way: dict[int, _Passing] = {}
        self._passed = 0
        self._norm = 0.0
        self.steps = 0

    # -------------------------------------------------------------------------------------- asked of a leader

    def vectors(self, tokens: Tensor, *, training: bool, keep: bool) -> Tensor:
        """Mean states of texts, int [U, T] -> [U, D], U > 0; zeros for an empty one. keep: a `backward` may follow, of
        the pass that is number `passed` then."""
        more = -tokens.shape[1] % self.mesh.spec.tp
        tokens = functional.pad(tokens, (0, more), value=-1).int().contiguous()
        self._tell(Command.FORWARD, tuple(tokens.shape), training, keep, torch.initial_seed())
        dist.broadcast(tokens, src=self._leader, group=self._way)
        pooled = self._forward(tokens, training=training, keep=keep)
        assert pooled is not None
        return pooled

    @property
    def passed(self) -> int:
        """Number of the last pass that was kept."""
        return self._passed

    def backward(self, number: int, gradient: Tensor) -> None:
        """Take the gradient of what pass `number` gave, [U, D]."""
        self._tell(Command.BACKWARD, number)
        self._backward(number, gradient)

    def reduce(self) -> bool:
        """Sum gradients over ways; whether they are finite. All leaders call it together, once a step."""
        self._tell(Command.REDUCE)
        self._reduce()
        return math.isfinite(self._norm)

    def apply(self) -> None:
        """Step the optimizer."""
        self._tell(Command.APPLY)
        self._apply()

    def clear(self) -> None:
        """Forget gradients: the step changes nothing."""
        self._tell(Command.CLEAR)
        self._clear()

    def state(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """The whole half's parameters, and its optimizer's tensors by `<parameter>/<name>`, as one process has them."""
        self._tell(Command.GATHER)
        found = self._gather()
        assert found is not None
        return found

    def load(self, parameters: Mapping[str, Tensor] | None, optimizer: Mapping[str, Tensor], *, steps: int) -> None:
        """Take over what `state` gave, after `steps` steps. parameters: None leaves them."""
        self._tell(Command.LOAD)
        sent = [(None if parameters is None else dict(parameters), dict(optimizer), steps)]
        dist.broadcast_object_list(sent, src=self._leader, group=self._way)
        self._load(*sent[0])

    def stop(self) -> None:
        """Let the followers end; they have heard it when this returns."""
        self._tell(Command.STOP)
        dist.barrier(group=self._way)

    # -------------------------------------------------------------------------------------- followers

    def follow(self) -> None:
        """Do what the way's leader says until it says stop."""
        while True:
            heard: list[Any] = [None]
            dist.broadcast_object_list(heard, src=self._leader, group=self._way)
            command, arguments = heard[0]
            if command is Command.STOP:
                dist.barrier(group=self._way)
                return
            self._do(command, arguments)

    def _do(self, command: Command, arguments: tuple[Any, ...]) -> None:
        if command is Command.FORWARD:
            shape, training, keep, seed = arguments
            torch.default_generator.manual_seed(seed + 1 + self.mesh.rank)
            tokens = torch.empty(shape, dtype=torch.int32)
            dist.broadcast(tokens, src=self._leader, group=self._way)
            self._forward(tokens, training=training, keep=keep)
        elif command is Command.LOAD:
            sent: list[Any] = [None]
            dist.broadcast_object_list(sent, src=self._leader, group=self._way)
            self._load(*sent[0])
        elif command is Command.BACKWARD:
            self._backward(arguments[0], None)
        else:
            plain = {
                Command.REDUCE: self._reduce,
                Command.APPLY: self._apply,
                Command.CLEAR: self._clear,
                Command.GATHER: self._gather,
            }
            plain[command]()

    def _tell(self, command: Command, *arguments: object) -> None:
        dist.broadcast_object_list([(command, arguments)], src=self._leader, group=self._way)

    # -------------------------------------------------------------------------------------- what all ranks do

    def _forward(self, tokens: Tensor, *, training: bool, keep: bool) -> Tensor | None:
        """Micro-batch after micro-batch through this rank's blocks; mean states [U, D] on the last stage."""
        self._part.train(training)
        pooled, sent, kept = [], [], []
        counts = (tokens >= 0).sum(1, keepdim=True).clamp(min=1)
        with torch.set_grad_enabled(keep):
            for part in tokens.chunk(self.mesh.spec.micro_batches):
                micro = self._through(part, keep=keep)
                if self._last:
                    total = micro.given.detach().clone()
                    dist.all_reduce(total, group=self._tp)
                    pooled.append(total)
                else:
                    states = micro.given.detach().contiguous()
                    sent.append((states, dist.isend(states, group=self._pp, group_dst=self.mesh.place.pp + 1)))
                kept.append(micro)
        _wait(sent)
        if keep:
            self._passed += 1
            self._under_way[self._passed] = _Passing(kept, counts)
        return torch.cat(pooled) / counts if self._last else None

    def _through(self, tokens: Tensor, *, keep: bool) -> _Micro:
        known = tokens >= 0
        if self._first:
            assert self._part.embed is not None
            taken = self._part.embed(tokens.clamp(min=0).long())
        else:
            shape = (len(tokens), tokens.shape[1] // self.mesh.spec.tp, self._width)
            taken = torch.empty(shape, dtype=self._pieces[0].dtype)
            dist.recv(taken, group=self._pp, group_src=self.mesh.place.pp - 1)
            taken.requires_grad_(keep)
        given = self._part.encode(taken, mask=attended(known))
        if isinstance(given, DTensor):
            given = given.to_local()
        if self._last:
            own = known.chunk(self.mesh.spec.tp, 1)[self.mesh.place.tp]
            given = torch.bmm(own.to(given.dtype).unsqueeze(1), given).squeeze(1)
        return _Micro(taken, given)

    def _backward(self, number: int, gradient: Tensor | None) -> None:
        """gradient: of the mean states, [U, D], on the leader."""
        passing, sent = self._under_way.pop(number), []
        gradients: list[Tensor] = []
        if self._last:
            empty = torch.empty(len(passing.counts), self._width, dtype=self._pieces[0].dtype)
            whole = empty if gradient is None else gradient.contiguous()
            dist.broadcast(whole, src=self._leader, group=self._tp)
            gradients = list(torch.split(whole / passing.counts, [len(micro.given) for micro in passing.micros]))
        for place, micro in enumerate(passing.micros):
            if self._last:
                own = gradients[place]
            else:
                own = torch.empty_like(micro.given)
                dist.recv(own, group=self._pp, group_src=self.mesh.place.pp + 1)
            torch.autograd.backward([micro.given], [own])
            if not self._first:
                assert micro.taken.grad is not None
                back = micro.taken.grad.contiguous()
                sent.append((back, dist.isend(back, group=self._pp, group_dst=self.mesh.place.pp - 1)))
        _wait(sent)

    def _reduce(self) -> None:
        settle_gradients(self._part)
        flat = torch.cat([_flat_gradient(parameter, piece) for (_, parameter), piece in self._with_pieces()])
        dist.all_reduce(flat, group=self._dp)
        squares = torch.zeros((), dtype=torch.float64)
        start = 0
        for (_, parameter), piece in self._with_pieces():
            stop = start + piece.numel()
            piece.grad = flat[start:stop].view_as(piece)
            square = torch.linalg.vector_norm(piece.grad).double().square()
            squares += square * ranks_apart(parameter, self.mesh.spec) / (self.mesh.spec.dp * self.mesh.spec.tp)
            start = stop
        self._norm = float(self.mesh.sum_over_ranks(squares).sqrt())

    def _apply(self) -> None:
        if self._clip is not None:
            factor = min(1.0, self._clip / (self._norm + _CLIP_EPS))
            for piece in self._pieces:
                assert piece.grad is not None
                piece.grad.mul_(factor)
        if not self.frozen:
            self._share.step(self.steps)
        self._clear()

    def _clear(self) -> None:
        self.steps += 1
        self._under_way.clear()
        for (_, parameter), piece in self._with_pieces():
            parameter.grad = piece.grad = None

    def _gather(self) -> tuple[dict[str, Tensor], dict[str, Tensor]] | None:
        """This rank's parameters and optimizer state, whole; on the leader those of all stages."""
        parameters, optimizer = {}, {}
        for (name, parameter), piece in self._with_pieces():
            parameters[name] = _whole(piece, like=parameter).clone()
            for key, value in self._share.optimizer.state.get(piece, {}).items():
                optimizer[f"{name}/{key}"] = (_whole(value, like=parameter) if value.ndim else value).clone()
        if self.mesh.place.tp:
            return None
        parts: list[Any] = [None] * self.mesh.spec.pp
        dist.gather_object((parameters, optimizer), parts if self.leads else None, dst=self._leader, group=self._pp)
        if not self.leads:
            return None
        return {k: v for p, _ in parts for k, v in p.items()}, {k: v for _, o in parts for k, v in o.items()}

    @torch.no_grad()
    def _load(self, parameters: Mapping[str, Tensor] | None, optimizer: Mapping[str, Tensor], steps: int) -> None:
        self.steps = steps
        for (name, parameter), piece in self._with_pieces():
            if parameters is not None:
                piece.copy_(self._own(parameters[name], parameter))
            self._share.optimizer.state.pop(piece, None)
            state = {
                path.rpartition("/")[2]: self._own(value, parameter).clone() if value.ndim else value.clone()
                for path, value in optimizer.items()
                if path.rpartition("/")[0] == name
            }
            if state:
                self._share.optimizer.state[piece] = state

    def _own(self, whole: Tensor, parameter: Tensor) -> Tensor:
        """This rank's piece of a whole tensor."""
        for axis, dimension in axes_split(parameter):
            count, number = getattr(self.mesh.spec, axis), getattr(self.mesh.place, axis)
            whole = chunk_of(whole, dimension, count=count, number=number)
        return whole

    def _with_pieces(self) -> list[tuple[tuple[str, Any], Tensor]]:
        return list(zip(self._named, self._pieces, strict=True))

    @property
    def width(self) -> int:
        return self._width

    def names(self) -> list[str]:
        """Of the whole half's parameters."""
        with torch.device("meta"):
            whole = Transformer(self._part.spec, part=replace(Part.whole(self._part.spec), head=False))
        return [name for name, _ in whole.named_parameters()]


def _whole(piece: Tensor, *, like: Tensor) -> Tensor:
    """A parameter's tensor, or one of its form, put together from all tensor-parallel ranks."""
    if not isinstance(like, DTensor):
        return piece
    whole: Tensor = DTensor.from_local(
        piece, like.device_mesh, like.placements, run_check=False, shape=like.shape, stride=like.stride()
    ).full_tensor()
    return whole


def _flat_gradient(parameter: Tensor, piece: Tensor) -> Tensor:
    if parameter.grad is None:
        return torch.zeros(piece.numel(), dtype=piece.dtype)
    return local_of(parameter.grad).reshape(-1)


def _wait(sent: list[tuple[Tensor, Any]]) -> None:
    for _, work in sent:
        work.wait()


def _rank_at(spec: MeshSpec, *, pp: int, dp: int, tp: int) -> int:
    wanted = (pp, dp, 0, tp)
    places = (place_of(rank, spec) for rank in range(spec.ranks))
    return next(rank for rank, p in enumerate(places) if (p.pp, p.dp, p.shard, p.tp) == wanted)


def _way_groups(spec: MeshSpec) -> list[Any]:
    """A group of each way's ranks; all ranks make all of them, in order."""
    ways = [[rank for rank in range(spec.ranks) if place_of(rank, spec).dp == way] for way in range(spec.dp)]
    return [dist.new_group(ranks, timeout=_PATIENCE) for ranks in ways]
