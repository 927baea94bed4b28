"""Which precision towers take: by hardware for `auto`, by the job otherwise, one for all."""

from __future__ import annotations

import pytest

from hetero.hardware.precision import (
    FAST_CPU_FLAGS,
    FastBf16,
    choose_precision,
    fast_bf16_here,
    fast_bf16_of_cpu,
    fast_bf16_of_cuda,
)
from hetero.hardware.probe import cpu_model_and_flags
from hetero.records import Precision

HAS = FastBf16(has=True, why="Some Xeon has amx_bf16")
LACKS = FastBf16(has=False, why="Some EPYC has neither amx_bf16 nor avx512_bf16")


@pytest.mark.parametrize(
    ("flags", "has"),
    [
        (("avx2", "fma"), False),
        (("avx2", "avx512"), False),
        (("avx512", "avx512_bf16"), True),
        (("avx512", "amx_bf16", "amx_int8"), True),
        (("neon", "bf16"), False),
    ],
)
def test_cpus_by_their_flags(flags: tuple[str, ...], has: bool) -> None:
    told = fast_bf16_of_cpu("CPU X", flags)
    assert told.has is has
    assert "CPU X" in told.why
    assert "bf16" in told.why


def test_cuda_devices_by_their_capability() -> None:
    assert not fast_bf16_of_cuda("T4", (7, 5)).has
    assert fast_bf16_of_cuda("A100", (8, 0)).has
    assert fast_bf16_of_cuda("H200", (9, 0)).has
    assert "7.5" in fast_bf16_of_cuda("T4", (7, 5)).why


def test_other_devices_have_none_and_say_so() -> None:
    told = fast_bf16_here("xpu")
    assert not told.has
    assert "xpu" in told.why


def test_this_machine_is_judged_by_its_flags() -> None:
    _, flags = cpu_model_and_flags()
    assert fast_bf16_here().has is bool(set(flags) & set(FAST_CPU_FLAGS))


def test_auto_takes_bf16_only_where_all_towers_have_it() -> None:
    assert choose_precision(Precision.AUTO, [HAS, HAS]).taken is Precision.BF16
    mixed = choose_precision(Precision.AUTO, [HAS, LACKS])
    assert mixed.taken is Precision.FP32
    assert "tower 1" in mixed.why
    assert "amx_bf16" in choose_precision(Precision.AUTO, [LACKS]).why


def test_what_the_job_says_is_taken() -> None:
    assert choose_precision(Precision.FP32, [HAS]).taken is Precision.FP32
    wanted = choose_precision(Precision.BF16, [LACKS])
    assert wanted.taken is Precision.BF16
    assert "emulated" in wanted.why
    assert "emulated" not in choose_precision(Precision.BF16, [HAS]).why
    assert wanted.to_dict() == {"asked": "bf16", "taken": "bf16", "why": wanted.why}
