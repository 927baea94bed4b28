"""Readers of a run, and others in the place of those that are lost.

A new reader reads again what the lost one held, as the sequencer tells; then the sequencer and the towers hear of it
and ask it for what they have had no answer to. Until then they wait; nothing else of the run is touched.
"""

from __future__ import annotations

from typing import Any

from actors.calls import Answer
from actors.group import ActorGroup
from actors.naming import Member, Role
from hetero.loops.run import DataPass

_READ_AGAIN_S = 600.0


class Replacements:
    """Starts the readers' loops; knows the how-manieth reader is in each place."""

    def __init__(self, group: ActorGroup) -> None:
        self._group = group
        self._lives: dict[Member, int] = {}

    def read(self, reader: Member) -> Answer[Any]:
        """Let it read until the phase needs no more."""
        return self._group.call(reader, "read", self._sequencer(), self._lives.get(reader, 0))

    def replace(self, reader: Member, data: DataPass) -> Answer[Any]:
        """A new one in the place of a lost one, reading. Raises PeerLostError when that one does not come so far."""
        group = self._group
        life = self._lives[reader] = self._lives.get(reader, 0) + 1
        group.end(reader)
        group.begin_again(reader)
        sequencer = group.of(Role.SEQUENCER)[0]
        held = group.call(sequencer, "take_over", reader.index, life).result()
        group.call_all([reader], "open", data)
        group.call_all([reader], "take_over", self._sequencer(), life, held, deadline_s=_READ_AGAIN_S)
        group.call_all([sequencer, *group.of(Role.TOWER)], "reader_replaced", reader.index, group.peer(reader))
        return self.read(reader)

    def _sequencer(self) -> Any:
        return self._group.peer(self._group.of(Role.SEQUENCER)[0])
