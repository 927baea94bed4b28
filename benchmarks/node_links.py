"""Links between the nodes of an emulated cluster, measured while nothing else runs, for predictions of placements."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from actors.links import call_cpu_s, group_link, links_between, message_cpu_s, probes
from hetero.hardware.devices import Link


@dataclass(frozen=True, slots=True, kw_only=True)
class Links:
    """calls: through the object store. groups: of collectives, by number of towers. CPU times: see Configuration."""

    calls: Link
    groups: Mapping[int, Link]
    call_cpu_s: float
    message_cpu_s: float


def measured_links() -> Links:
    """Between nodes of the cluster, without anything else running."""
    with probes() as made:
        calls = links_between(made[:2])[0].store
        actors = [actor for _, actor in made]
        return Links(
            calls=calls,
            groups={size: group_link(actors[:size]) for size in (2, 3, 4) if size <= len(actors)},
            call_cpu_s=call_cpu_s(made),
            message_cpu_s=message_cpu_s(actors[:2]),
        )
