"""What a data way of a deep model reads: its share of every batch, as tensors on its device."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from hetero.data.masking import IGNORED, Masking, MaskingSpec, MaskUnit
from hetero.data.token_blocks import TokenBlocks, positions_of
from hetero.data.token_store import TokenStore
from hetero.records.arrays import I64
from hetero.records.deep_job import DeepJobSpec

Shares = tuple[Tensor, Tensor]
"""tokens, targets: int64 [b, context] each."""


class DeepBatches:
    """Batches of a job for data way `way` of `ways`. Raises DataError when the tokens cannot be read."""

    def __init__(self, job: DeepJobSpec, *, way: int, ways: int, device: torch.device) -> None:
        self._job = job
        self._way = way
        self._ways = ways
        self._device = device
        self._train = TokenStore(Path(job.text.train))
        self._validation = None if job.text.validation is None else TokenStore(Path(job.text.validation))
        self._masking = self._make_masking()
        self._blocks = self._blocks_of(self._train)

    @property
    def data(self) -> str:
        """The training tokens' SHA-256."""
        return self._train.meta.sha256

    @property
    def blocks_per_epoch(self) -> int:
        return self._blocks.per_epoch

    def train(self, cursor: int) -> Shares:
        """This way's share of the batch that begins at `cursor`."""
        positions = positions_of(cursor, batch_size=self._job.batch_size, way=self._way, ways=self._ways)
        return self._shares(self._blocks.at(positions), positions)

    def validation(self, *, most: int | None) -> Iterator[Shares]:
        """This way's shares of all validation blocks, or of `most` spread evenly; the last batch is filled up with
        targets that count for nothing."""
        if self._validation is None:
            return
        blocks = self._blocks_of(self._validation)
        chosen = range(0, blocks.ordered, 1 if most is None else max(1, -(-blocks.ordered // most)))
        batch, share = self._job.batch_size, self._job.batch_size // self._ways
        for first in range(0, len(chosen), batch):
            mine = chosen[first : first + batch][self._way * share : (self._way + 1) * share]
            found = np.stack([blocks.ordered_at(number) for number in mine]) if mine else None
            yield self._filled(found, np.array(mine, dtype=np.int64), share)

    def _filled(self, blocks: I64 | None, positions: I64, share: int) -> Shares:
        context = self._job.model.context
        tokens = torch.zeros((share, context), dtype=torch.int64, device=self._device)
        targets = torch.full((share, context), IGNORED, dtype=torch.int64, device=self._device)
        if blocks is not None:
            some_tokens, some_targets = self._shares(blocks, positions)
            tokens[: len(blocks)], targets[: len(blocks)] = some_tokens, some_targets
        return tokens, targets

    def _shares(self, blocks: I64, positions: I64) -> Shares:
        if self._masking is None:
            whole = torch.from_numpy(blocks).to(self._device)
            return whole[:, :-1], whole[:, 1:]
        masked = [self._masking.hide(block, position=int(p)) for block, p in zip(blocks, positions, strict=True)]
        inputs = torch.from_numpy(np.stack([one.inputs for one in masked]))
        targets = torch.from_numpy(np.stack([one.targets for one in masked]))
        return inputs.to(self._device), targets.to(self._device)

    def _blocks_of(self, store: TokenStore) -> TokenBlocks:
        context = self._job.model.context
        length = context if self._masking is not None else context + 1
        return TokenBlocks(store, stride=context, length=length, seed=self._job.seed)

    def _make_masking(self) -> Masking | None:
        text = self._job.text
        if text.masking is None:
            return None
        spec = MaskingSpec(
            mask=text.mask, vocabulary=text.vocabulary, unit=MaskUnit(text.masking), share=text.mask_share
        )
        return Masking(spec, seed=self._job.seed, word_starts=self._train.word_starts)
