"""Over hundreds of windows the object store holds what is under way and no more, and nothing spills."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

STEPS = 600


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_use_is_flat_over_500_windows_and_nothing_spills(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "tests.support.store_watch", str(tmp_path), str(STEPS)],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-2000:]
    told = json.loads(ended.stdout.splitlines()[-1])
    assert told["steps"] == STEPS
    early = [used for step, used in told["seen"] if 50 <= step < STEPS // 2]
    late = [used for step, used in told["seen"] if STEPS // 2 <= step < STEPS]
    assert len(early) >= 3, told
    assert len(late) >= 3, told
    assert max(early) > 0, told  # batches do lie in the store
    assert max(late) <= 1.5 * max(early) + (1 << 20), told
    assert told["spilled_bytes"] == 0
