"""What a tower is built for, and what it is given: looked-up embeddings by name.

Legend: B rows of the batch, F pooled lookups of a group, L longest sequence of the batch, E width, U unique
rows of a group.

    rows[g] [U, E]  ->  block [B, F, E] (pooled)  ->  emb["user"] [B, E]
                    ->  sequence [B, L, E]        ->  emb["history"] [B, L, E], emb.mask("history") [B, L]

After `loss.backward()`, `rows[g].grad` holds one merged gradient per unique row, summed in the order that
`hetero.kernels.pooling` defines.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from torch import Tensor, cat, stack

from hetero.errors import ProtocolError, TowerError
from hetero.kernels.pooling import Bool
from hetero.kernels.pooling_torch import tensor_of
from hetero.records import Batch, JobSpec, Pooling
from hetero.towers.lookup import Backend, lookup_group


class UnknownLookupError(TowerError, KeyError):
    """A tower asks for a lookup that the job does not have (a KeyError too, as a Mapping promises)."""

    __str__ = Exception.__str__


@dataclass(frozen=True, slots=True)
class LookupInput:
    """One lookup as a tower sees it: [B, dim] when pooled, [B, L, dim] for `Pooling.NONE`."""

    name: str
    dim: int
    pooling: Pooling = Pooling.SUM

    @property
    def is_sequence(self) -> bool:
        return self.pooling is Pooling.NONE


@dataclass(frozen=True, slots=True)
class TextInput:
    """One text as a tower sees it: token ids [B, length] below `vocabulary`. mask: the id shown for hidden tokens."""

    name: str
    length: int
    vocabulary: int
    mask: int | None = None


@dataclass(frozen=True, slots=True)
class TowerInputs:
    """What a tower is built for. dense: number of dense features; lookups, texts: in the job's order; tasks: names of
    further labels, see `hetero.towers.outputs`.

    A lookup of dim 1 is *wide*: its value is added to the logit. A lookup of dim > 1 is *deep*.
    """

    dense: int
    lookups: tuple[LookupInput, ...]
    texts: tuple[TextInput, ...] = ()
    tasks: tuple[str, ...] = ()

    @property
    def wide(self) -> tuple[LookupInput, ...]:
        return tuple(lookup for lookup in self.lookups if lookup.dim == 1)

    @property
    def deep(self) -> tuple[LookupInput, ...]:
        return tuple(lookup for lookup in self.lookups if lookup.dim > 1)

    def lookup(self, name: str) -> LookupInput:
        """The lookup of that name. Raises UnknownLookupError with the nearest names."""
        by_name = {lookup.name: lookup for lookup in self.lookups}
        if name not in by_name:
            raise UnknownLookupError(_unknown(name, by_name))
        return by_name[name]


def tower_inputs(job: JobSpec) -> TowerInputs:
    """What the job's tower is built for."""
    lookups = tuple(LookupInput(spec.name, spec.dim, spec.pooling) for spec in job.lookups)
    texts = tuple(TextInput(text.name, text.length, text.vocabulary, text.mask) for text in job.train.texts)
    return TowerInputs(len(job.train.dense), lookups, texts, tuple(task.name for task in job.train.tasks))


@dataclass(frozen=True, slots=True, eq=False)
class GroupLayout:
    """Which lookups a group's block and sequences hold, in order. mean: bool [F], True for means."""

    dim: int
    pooled: tuple[str, ...]
    sequences: tuple[str, ...]
    mean: Bool


@dataclass(frozen=True, slots=True)
class Place:
    """Where a lookup is found: column `index` of its group's block, or its group's sequence `index`."""

    group: int
    index: int
    is_sequence: bool


@dataclass(frozen=True, slots=True, eq=False)
class EmbeddingLayout:
    """Where each lookup of a job lies in its batches; made once a job."""

    groups: tuple[GroupLayout, ...]
    places: Mapping[str, Place]
    texts: tuple[str, ...] = ()

    @classmethod
    def from_job(cls, job: JobSpec) -> Self:
        """Pooled lookups of a group are its block's columns, in job order; so are its sequences."""
        groups: list[GroupLayout] = []
        places: dict[str, Place] = {}
        for number, group in enumerate(job.groups):
            lookups = [lookup for lookup in job.lookups if lookup.group == number]
            pooled = [lookup for lookup in lookups if lookup.pooling is not Pooling.NONE]
            sequences = [lookup for lookup in lookups if lookup.pooling is Pooling.NONE]
            places |= {lookup.name: Place(number, index, False) for index, lookup in enumerate(pooled)}
            places |= {lookup.name: Place(number, index, True) for index, lookup in enumerate(sequences)}
            groups.append(
                GroupLayout(
                    dim=group.dim,
                    pooled=tuple(lookup.name for lookup in pooled),
                    sequences=tuple(lookup.name for lookup in sequences),
                    mean=np.array([lookup.pooling is Pooling.MEAN for lookup in pooled], np.bool_),
                )
            )
        ordered = {lookup.name: places[lookup.name] for lookup in job.lookups}
        return cls(tuple(groups), ordered, tuple(text.name for text in job.train.texts))


class Embeddings(Mapping[str, Tensor]):
    """The looked-up embeddings of one batch, by lookup name, in job order.

    blocks: one per group, float32 [B, F, E]: every pooled lookup of the group, without a copy. tokens: one a text, int
    [B, length], NO_TOKEN behind its end. texts: [B, D] each, where the tower has read them already.
    """

    def __init__(
        self,
        layout: EmbeddingLayout,
        *,
        blocks: Sequence[Tensor],
        sequences: Sequence[Sequence[Tensor]],
        masks: Sequence[Sequence[Tensor]],
        tokens: Sequence[Tensor] = (),
        texts: Sequence[Tensor] = (),
    ) -> None:
        self._tokens = dict(zip(layout.texts, tokens, strict=True))
        self.texts = tuple(texts)
        self.blocks = tuple(blocks)
        self._layout = layout
        self._sequences = sequences
        self._masks = masks
        self._columns: dict[int, tuple[Tensor, ...]] = {}

    def __getitem__(self, name: str) -> Tensor:
        place = self._place(name)
        if place.is_sequence:
            return self._sequences[place.group][place.index]
        return self._unbound(place.group)[place.index]

    def __iter__(self) -> Iterator[str]:
        return iter(self._layout.places)

    def __len__(self) -> int:
        return len(self._layout.places)

    def mask(self, name: str) -> Tensor:
        """Which cells of a sequence hold a row: bool [B, L]. Raises TowerError when `name` is pooled."""
        place = self._place(name)
        if not place.is_sequence:
            raise TowerError(
                f"lookup {name!r} is pooled, so it has no mask; give it `pooling: none` to keep its sequence"
            )
        return self._masks[place.group][place.index]

    def tokens(self, name: str) -> Tensor:
        """Token ids of a text: int [B, length]. Raises UnknownLookupError with the nearest names."""
        if name not in self._tokens:
            raise UnknownLookupError(_unknown(name, self._tokens, kind="text"))
        return self._tokens[name]

    def cut(self, texts: Sequence[Tensor]) -> Embeddings:
        """The same values beside those of texts, as leaves that gather gradients of their own: see `backward`."""
        return Embeddings(
            self._layout,
            blocks=[leaf_of(block) for block in self.blocks],
            sequences=[[leaf_of(sequence) for sequence in group] for group in self._sequences],
            masks=self._masks,
            tokens=list(self._tokens.values()),
            texts=texts,
        )

    def backward(self, leaves: Embeddings) -> None:
        """Take on to the rows what the leaves that `cut` made have gathered."""
        backward(self._looked_up(), leaves._looked_up())

    def _looked_up(self) -> list[Tensor]:
        return [*self.blocks, *(sequence for group in self._sequences for sequence in group)]

    def stack(self, names: Sequence[str]) -> Tensor:
        """Pooled lookups of one width as [B, F, E].

        Where `names` is all of a group's block in order, that is the block itself, without a copy. Raises
        TowerError for no names, a sequence among them, or unlike widths.
        """
        runs = self._runs(names)
        widths = {tensor.shape[-1] for tensor in runs}
        if len(widths) != 1:
            raise TowerError(f"lookups to be stacked need one width; got {sorted(widths)} for {list(names)}")
        return runs[0] if len(runs) == 1 else cat(runs, 1)

    def concat(self, names: Sequence[str]) -> Tensor:
        """Pooled lookups of any widths side by side, as [B, sum of widths].

        Raises TowerError for no names or a sequence among them.
        """
        runs = [run.flatten(1) for run in self._runs(names)]
        if not runs:
            raise TowerError("there are no lookups to put side by side: the list of names is empty")
        return runs[0] if len(runs) == 1 else cat(runs, 1)

    def _place(self, name: str) -> Place:
        place = self._layout.places.get(name)
        if place is None:
            raise UnknownLookupError(_unknown(name, self._layout.places))
        return place

    def _unbound(self, group: int) -> tuple[Tensor, ...]:
        if group not in self._columns:
            self._columns[group] = self.blocks[group].unbind(1)
        return self._columns[group]

    def _runs(self, names: Sequence[str]) -> list[Tensor]:
        """The names in order as few tensors [B, n, E]: whole blocks as they are, other stretches stacked."""
        runs: list[Tensor] = []
        loose: list[Tensor] = []
        position = 0
        while position < len(names):
            place = self._place(names[position])
            if place.is_sequence:
                raise TowerError(f"lookup {names[position]!r} is a sequence; pool it before putting it beside others")
            block = self._layout.groups[place.group].pooled
            is_whole = tuple(names[position : position + len(block)]) == block
            column = self.blocks[place.group] if is_whole else self._unbound(place.group)[place.index]
            if loose and (is_whole or loose[0].shape[-1] != column.shape[-1]):
                runs.append(stack(loose, 1))
                loose = []
            if is_whole:
                runs.append(column)
            else:
                loose.append(column)
            position += len(block) if is_whole else 1
        return [*runs, stack(loose, 1)] if loose else runs


def embed(
    batch: Batch, rows: Sequence[Tensor], layout: EmbeddingLayout, *, backend: Backend = Backend.AUTO
) -> Embeddings:
    """Look up a batch: from each group's unique rows to the tower's inputs.

    rows: one float32 tensor [U, E] a group, in the order of `batch.groups[g].unique`; leaves that require a
    gradient when training. On the CPU neither rows nor results are copied between torch and numpy.
    Raises ProtocolError when rows, batch and layout do not belong together.
    """
    if not len(rows) == len(batch.groups) == len(layout.groups):
        raise ProtocolError(
            f"embed: {len(rows)} tensors of rows and {len(batch.groups)} groups in the batch, but the job "
            f"has {len(layout.groups)} groups"
        )
    found = [
        lookup_group(tensor, group, rows_in_batch=batch.rows, mean=part.mean, dim=part.dim, backend=backend)
        for tensor, group, part in zip(rows, batch.groups, layout.groups, strict=True)
    ]
    device = rows[0].device if rows else torch.device("cpu")
    return Embeddings(
        layout,
        blocks=[group.block for group in found],
        sequences=[group.sequences for group in found],
        masks=[group.masks for group in found],
        tokens=[tensor_of(tokens, device=device) for tokens in batch.tokens],
    )


def leaf_of(values: Tensor) -> Tensor:
    """The same values at the beginning of a graph of their own."""
    return values.detach().requires_grad_(values.requires_grad)


def backward(tensors: Sequence[Tensor], leaves: Sequence[Tensor]) -> None:
    """Go on from the gradients that the tensors' leaves have; those without one are left out."""
    pairs = [(values, leaf.grad) for values, leaf in zip(tensors, leaves, strict=True) if leaf.grad is not None]
    if pairs:
        torch.autograd.backward([values for values, _ in pairs], [gradient for _, gradient in pairs])


def _unknown(name: str, known: Iterable[str], *, kind: str = "lookup") -> str:
    names = list(known)
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.5) or names
    return f"there is no {kind} {name!r} in this job; nearest: {', '.join(near) or f'(the job has no {kind}s)'}"
