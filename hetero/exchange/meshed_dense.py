"""The dense side of a tower whose text half lies on a mesh: gradients of both halves are applied, or neither's."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from hetero.exchange.dense_sides import ReplicatedDense
from hetero.parallel.dense import DenseStep
from hetero.parallel.mesh_text import PREFIX
from hetero.parallel.text_mesh import TextRank

_TEXT = "text"
_STEPS = "/steps"


class MeshedDense:
    """`own` has what the leader holds; the ranks of the mesh step the text half. Its state is that of a whole tower."""

    def __init__(self, own: ReplicatedDense, text: TextRank) -> None:
        self._own = own
        self._text = text

    def begin(self) -> None:
        """The parameters are there."""

    def step(self, loss: torch.Tensor, *, flag: float = 0.0) -> DenseStep:
        """Sum both halves' gradients over the ways; apply them when all of them are finite."""
        finite = self._text.reduce()
        done = self._own.step(loss, flag=flag, veto=() if finite else (_TEXT,))
        if done.rejected:
            self._text.clear()
        else:
            self._text.apply()
        return done

    def settle(self) -> tuple[str, ...]:
        """Nothing is under way."""
        return ()

    def refresh(self) -> None:
        """The parameters are the run's."""

    def reopen(self) -> None:
        """There is no other copy."""

    def state(self) -> dict[str, torch.Tensor]:
        _, optimizer = self._text.state()
        steps = {_STEPS: torch.tensor(self._text.steps)}
        return self._own.state() | {f"{_TEXT}.{PREFIX}{path}": value for path, value in optimizer.items()} | steps

    def restore(self, state: Mapping[str, torch.Tensor]) -> None:
        begin = f"{_TEXT}.{PREFIX}"
        text = {path.removeprefix(begin): value for path, value in state.items() if path.startswith(begin)}
        self._own.restore({path: value for path, value in state.items() if not path.startswith(begin)})
        steps = int(state[_STEPS]) if _STEPS in state else 0
        self._text.load(None, text, steps=steps)
