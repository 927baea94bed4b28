"""Runs a function on several processes, each one rank of a collective group, with a deadline for all."""

from __future__ import annotations

import multiprocessing
import queue
import time
from collections.abc import Callable, Sequence
from typing import Any

from hetero.parallel.group import Rendezvous, free_rendezvous

RankFunction = Callable[..., Any]


def _run(function: RankFunction, rank: int, size: int, meet: Rendezvous, answers: Any, extra: tuple[Any, ...]) -> None:
    import torch

    torch.set_num_threads(1)
    try:
        answers.put((rank, function(rank, size, meet, *extra), None))
    except Exception as error:
        answers.put((rank, None, error))


def on_ranks(
    function: RankFunction,
    *extra: Any,
    size: int,
    deadline_s: float = 60.0,
    silent: int = 0,
    preload: Sequence[str] = (),
) -> dict[int, Any]:
    """What `function(rank, size, rendezvous, *extra)` returned on every rank, or the exception it raised.

    silent: so many ranks are expected to end without an answer. preload: modules that one process imports, of which the
    ranks are then forked; many ranks of heavy modules begin sooner so. Raises TimeoutError when others do not answer in
    time.
    """
    context: Any = multiprocessing.get_context("forkserver" if preload else "spawn")
    if preload:
        context.set_forkserver_preload(list(preload))
    answers = context.Queue()
    meet = free_rendezvous("127.0.0.1")
    processes = [
        context.Process(target=_run, args=(function, rank, size, meet, answers, extra), daemon=True)
        for rank in range(size)
    ]
    for process in processes:
        process.start()
    found: dict[int, Any] = {}
    deadline_t = time.monotonic() + deadline_s
    try:
        while len(found) < size - silent:
            try:
                rank, value, error = answers.get(timeout=max(0.0, deadline_t - time.monotonic()))
            except queue.Empty:
                raise TimeoutError(f"ranks {sorted(set(range(size)) - set(found))} gave no answer") from None
            found[rank] = value if error is None else error
        return found
    finally:
        for process in processes:
            process.kill()
            process.join()
