"""The fused row kernel of CUDA devices gives the bits of torch operations, in Triton's interpreter on the CPU."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

DEADLINE_S = 100.0


def test_the_kernel_gives_the_bits_of_torch_operations() -> None:
    pytest.importorskip("triton", reason="Triton comes with torch for CUDA")
    command = [sys.executable, "-m", "tests.support.triton_check"]
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert done.returncode == 0, done.stderr
