"""Hidden tokens of a masked model: shares, units, and that they are a function of the position alone."""

from __future__ import annotations

import numpy as np
import pytest

from hetero.data.masking import IGNORED, Masking, MaskingSpec, MaskUnit
from hetero.errors import JobError
from hetero.towers.transformer import IGNORED as IGNORED_BY_LOSS

MASK, VOCABULARY = 99, 90
STARTS = np.arange(100) % 5 == 0


def masking(unit: MaskUnit, share: float = 0.15) -> Masking:
    return Masking(MaskingSpec(mask=MASK, vocabulary=VOCABULARY, unit=unit, share=share), seed=7, word_starts=STARTS)


def blocks(count: int) -> np.ndarray:
    return np.random.default_rng(1).integers(0, VOCABULARY, (count, 128))


@pytest.mark.parametrize("unit", list(MaskUnit))
def test_share_and_kinds_of_what_is_hidden(unit: MaskUnit) -> None:
    originals = blocks(400)
    found = [masking(unit).hide(block, position=number) for number, block in enumerate(originals)]
    targets = np.stack([one.targets for one in found])
    inputs = np.stack([one.inputs for one in found])
    hidden = targets != IGNORED
    assert (hidden.sum(axis=1) == round(0.15 * 128)).all()
    np.testing.assert_array_equal(targets[hidden], originals[hidden])
    np.testing.assert_array_equal(inputs[~hidden], originals[~hidden])
    shown = inputs[hidden]
    assert (shown == MASK).mean() == pytest.approx(0.8, abs=0.03)
    assert (shown == originals[hidden]).mean() == pytest.approx(0.1, abs=0.03)


def test_a_block_is_hidden_by_its_position_alone() -> None:
    block = blocks(1)[0]
    first, again = (masking(MaskUnit.SPAN).hide(block, position=3) for _ in range(2))
    np.testing.assert_array_equal(first.inputs, again.inputs)
    np.testing.assert_array_equal(first.targets, again.targets)
    assert (masking(MaskUnit.SPAN).hide(block, position=4).targets != first.targets).any()


def test_words_are_hidden_whole() -> None:
    for number, block in enumerate(blocks(50)):
        hidden = masking(MaskUnit.WORD).hide(block, position=number).targets != IGNORED
        starts = STARTS[block].copy()
        starts[0] = True
        word = np.cumsum(starts)
        partly = [w for w in np.unique(word) if 0 < hidden[word == w].sum() < (word == w).sum()]
        assert len(partly) <= 1, "only the last word may be cut, where the share is reached"


def test_spans_are_longer_than_tokens() -> None:
    def runs(unit: MaskUnit) -> float:
        lengths = []
        for number, block in enumerate(blocks(100)):
            hidden = (masking(unit).hide(block, position=number).targets != IGNORED).astype(int)
            lengths.append(hidden.sum() / max(1, (np.diff(np.r_[0, hidden]) == 1).sum()))
        return float(np.mean(lengths))

    assert runs(MaskUnit.SPAN) > 2 * runs(MaskUnit.TOKEN)


def test_words_need_a_tokenizer_that_knows_them() -> None:
    with pytest.raises(JobError, match=r"masking.unit: `word` needs a tokenizer that knows where words begin"):
        Masking(MaskingSpec(mask=1, vocabulary=5, unit=MaskUnit.WORD), seed=1)


def test_data_and_loss_agree_on_what_is_ignored() -> None:
    assert IGNORED == IGNORED_BY_LOSS
