"""What a masked language model is asked: some tokens are hidden, one by one, by words, or by spans.

Of what is hidden 80% is shown as the mask, 10% as another token, 10% as it is (Devlin et al. 2019, BERT). Words and
spans are hidden whole (Sun et al. 2019, ERNIE; Joshi et al. 2020, SpanBERT: lengths geometric with p 0.2, at most 10).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import numpy as np
import numpy.typing as npt

from hetero.errors import JobError
from hetero.records.arrays import I64

IGNORED = -100
_SHOWN_AS_MASK = 0.8
_SHOWN_AS_OTHER = 0.9
_SPAN_STOP = 0.2
_LONGEST_SPAN = 10


class MaskUnit(Enum):
    """What is hidden together."""

    TOKEN = "token"
    WORD = "word"
    SPAN = "span"


@dataclass(frozen=True, slots=True, kw_only=True)
class MaskingSpec:
    """share: of tokens that are hidden. mask: the id shown for most of them. vocabulary: others are drawn below it."""

    mask: int
    vocabulary: int
    unit: MaskUnit = MaskUnit.TOKEN
    share: float = 0.15


@dataclass(frozen=True, slots=True)
class MaskedBlock:
    """inputs int64 [T]; targets int64 [T], the hidden tokens, IGNORED elsewhere."""

    inputs: I64
    targets: I64


class Masking:
    """Hides tokens of a block; a function of (seed, position, block). word_starts: bool [vocabulary], for words.

    Raises JobError when words are to be hidden and the tokenizer knows none.
    """

    def __init__(self, spec: MaskingSpec, *, seed: int, word_starts: npt.NDArray[np.bool_] | None = None) -> None:
        if spec.unit is MaskUnit.WORD and word_starts is None:
            raise JobError(
                "masking.unit: `word` needs a tokenizer that knows where words begin (char, gpt2, bpe); take `span` or "
                "`token`, or pack the text with another tokenizer"
            )
        self._spec = spec
        self._seed = seed
        self._word_starts = word_starts

    def hide(self, block: I64, *, position: int) -> MaskedBlock:
        """block: int64 [T]. position: of the block in training order."""
        random = np.random.Generator(np.random.Philox(key=np.array([self._seed, position], dtype=np.uint64)))
        units = self._units(block, random)
        budget = max(1, round(self._spec.share * len(block)))
        inputs, targets = block.copy(), np.full_like(block, IGNORED)
        for start, stop in units:
            if budget <= 0:
                break
            stop = min(stop, start + budget)
            fresh = targets[start:stop] == IGNORED
            budget -= int(fresh.sum())
            targets[start:stop] = block[start:stop]
            self._show(inputs, start, stop, random)
        return MaskedBlock(inputs, targets)

    def _show(self, inputs: I64, start: int, stop: int, random: np.random.Generator) -> None:
        draw = random.random()
        if draw < _SHOWN_AS_MASK:
            inputs[start:stop] = self._spec.mask
        elif draw < _SHOWN_AS_OTHER:
            inputs[start:stop] = random.integers(0, self._spec.vocabulary, stop - start)

    def _units(self, block: I64, random: np.random.Generator) -> list[tuple[int, int]]:
        """Candidates [start, stop) in random order; spans may overlap."""
        length = len(block)
        if self._spec.unit is MaskUnit.SPAN:
            starts = random.permutation(length)
            spans = np.minimum(random.geometric(_SPAN_STOP, length), _LONGEST_SPAN)
            return [(int(s), min(length, int(s + n))) for s, n in zip(starts, spans, strict=True)]
        bounds = np.arange(length)
        if self._spec.unit is MaskUnit.WORD and self._word_starts is not None:
            bounds = np.flatnonzero(self._word_starts[block])
            bounds = bounds if len(bounds) and bounds[0] == 0 else np.concatenate(([0], bounds))
        stops = np.append(bounds[1:], length)
        return [(int(bounds[number]), int(stops[number])) for number in random.permutation(len(bounds))]
