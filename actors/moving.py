"""Rows on their way between server actors, and tower 0's part in a change of their number."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from actors.calls import Answer
from actors.clients import Peer, RemoteServer
from hetero.errors import ProtocolError
from hetero.exchange.client import ShardedRowClient
from hetero.exchange.messages import ServerHandle
from hetero.exchange.moving import MovedRows, Sent
from hetero.keys.routing import Routing
from hetero.loops.moves import hand_over

_MOST_UNDER_WAY = 4


class Sender:
    """Sends rows to the servers that will hold them, a few parts under way at a time. peers: servers by number."""

    def __init__(self, peers: Sequence[Peer]) -> None:
        self._peers = peers
        self._under_way: deque[Answer[None]] = deque()
        self._sent = Sent()

    def send(self, moved: MovedRows) -> None:
        """Begin to send. Raises PeerLostError, DeadlineError or what a target raised for an earlier part."""
        while len(self._under_way) >= _MOST_UNDER_WAY:
            self._under_way.popleft().result()
        peer = self._peers[moved.target]
        what = f"rows {len(moved.keys)} of group {moved.group} that move"
        ref = peer.handle.take_moved.remote(moved)
        self._under_way.append(Answer(ref=ref, member=peer.member, what=what, deadline_s=peer.deadline_s))
        self._sent += Sent.of(moved)

    def settle(self) -> Sent:
        """Wait until all is held where it belongs; how much it was."""
        while self._under_way:
            self._under_way.popleft().result()
        return self._sent


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveNews:
    """The servers go by the new routing. step: after so many. sent: at the boundary. pause_s: training stood still."""

    step: int
    sent: Sent
    pause_s: float


class TowerMove:
    """A `hetero.loops.cuts.Move` over actors. connect: the servers of a routing. news: of the one prepared last."""

    def __init__(self, client: ShardedRowClient, connect: Callable[[Routing], Sequence[ServerHandle]]) -> None:
        self.news: MoveNews | None = None
        self._client = client
        self._connect = connect
        self._then: Routing | None = None
        self._handed_over: tuple[int, Sent] | None = None

    def prepare(self, then: Routing) -> None:
        """All rows that move are copied: the next cut for a move is to this routing."""
        self.news, self._then = None, then

    def hand_over(self, steps: int) -> None:
        if self._then is None:
            raise ProtocolError("tower 0: cut for a change of servers that nobody prepared")
        before = self._client.servers
        everyone = [*before, *self._connect(self._then)[len(before) :]]
        servers = [server for server in everyone if isinstance(server, RemoteServer)]
        self._handed_over = (steps, hand_over(servers, self._then, steps=steps))
        self._then = None

    def over(self, pause_s: float) -> None:
        if self._handed_over is not None:
            (step, sent), self._handed_over = self._handed_over, None
            self.news = MoveNews(step=step, sent=sent, pause_s=pause_s)
