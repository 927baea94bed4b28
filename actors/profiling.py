"""Work done once on a node of each kind of a cluster, such as measuring a job's tasks there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast

import ray

from actors.context import WORKER_VARIABLES
from hetero.errors import NoRoomError

_START_S = 120.0

T = TypeVar("T")


def on_node(
    work: Callable[[], T], *, labels: Mapping[str, str], cpus: float, import_paths: tuple[str, ...], deadline_s: float
) -> T:
    """What `work` returns when a process of a node with these labels calls it. work: a function of a module, with its
    arguments (`functools.partial`).

    Raises NoRoomError when no such node comes free in time, and what `work` raises.
    """
    options: dict[str, Any] = {
        "num_cpus": cpus,
        "max_retries": 0,
        "label_selector": dict(labels),
        "runtime_env": {"env_vars": dict(WORKER_VARIABLES)},
    }
    answer = cast(Any, ray.remote(_call)).options(**options).remote(work, import_paths)
    try:
        return cast(T, ray.get(answer, timeout=_START_S + deadline_s))
    except ray.exceptions.GetTimeoutError:
        ray.cancel(answer, force=True)
        named = ", ".join(f"{name}={value}" for name, value in labels.items()) or "any label"
        raise NoRoomError(
            f"no node with {named} and {cpus:g} free CPUs was done within {_START_S + deadline_s:g} s; add one, or "
            "wait for other runs"
        ) from None
    except ray.exceptions.RayTaskError as error:
        raise error.cause if isinstance(error.cause, Exception) else error from error


def _call(work: Callable[[], T], import_paths: tuple[str, ...]) -> T:
    import sys

    sys.path[:0] = [path for path in import_paths if path not in sys.path]
    return work()
