"""A process that keeps freed memory takes no page faults for arrays it allocates again and again."""

from __future__ import annotations

import subprocess
import sys

import pytest

SCRIPT = """
import resource, sys, threading
import torch
from hetero.hardware.heap import keep_freed_memory

if sys.argv[1] == "keep":
    print(keep_freed_memory())
else:
    print(False)

def faults():
    for _ in range(12):
        rounds()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(4):
        rounds()
    print((resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) // 4)

def rounds():
    arrays = [torch.empty(10 << 20).fill_(1.0) for _ in range(2)]

worker = threading.Thread(target=faults)
worker.start()
worker.join(60)
"""
PAGES = 2 * (40 << 20) // 4096


def faults_of_a_round(*, keep: bool) -> tuple[bool, int]:
    """Page faults of a round that fills 80 MB; whether the C library took the settings."""
    ran = subprocess.run(
        [sys.executable, "-c", SCRIPT, "keep" if keep else "default"],
        capture_output=True,
        text=True,
        timeout=90,
        check=True,
    )
    taken, faults = ran.stdout.split()
    return taken == "True", int(faults)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="a matter of glibc")
def test_freed_arrays_are_used_again() -> None:
    taken, kept = faults_of_a_round(keep=True)
    if not taken:
        pytest.skip("this C library has no such settings")
    _, mapped = faults_of_a_round(keep=False)
    assert kept < PAGES // 100
    assert mapped > PAGES // 2, "glibc keeps freed arrays by itself now: the settings have become needless"
