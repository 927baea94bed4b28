"""Which precision a job's towers multiply matrices in: asked for in the job, decided once for all of them.

Rows, optimizer state, parameters, sums over towers and losses are float32 whatever is decided.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hetero.hardware.probe import cpu_model_and_flags
from hetero.records import Precision

FAST_CPU_FLAGS = ("amx_bf16", "avx512_bf16")
FIRST_FAST_CUDA = (8, 0)
"""Compute capability from which CUDA devices multiply bf16 matrices in hardware (CUDA C++ Programming Guide, arithmetic
throughput by capability)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FastBf16:
    """Whether a tower's device multiplies bf16 matrices in hardware, and what says so."""

    has: bool
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PrecisionChoice:
    """What the job asked for, what all its towers take (FP32 or BF16), and why, for people."""

    asked: Precision
    taken: Precision
    why: str

    def __str__(self) -> str:
        return f"{self.taken.value} ({self.why})"

    def to_dict(self) -> dict[str, str]:
        """The record as JSON holds it."""
        return {"asked": self.asked.value, "taken": self.taken.value, "why": self.why}


def fast_bf16_of_cpu(model: str, flags: Sequence[str]) -> FastBf16:
    """Of a CPU. flags: as `probe_machine` names them."""
    for flag in FAST_CPU_FLAGS:
        if flag in flags:
            return FastBf16(has=True, why=f"{model} has {flag}")
    return FastBf16(has=False, why=f"{model} has neither {' nor '.join(FAST_CPU_FLAGS)}")


def fast_bf16_of_cuda(name: str, capability: tuple[int, int]) -> FastBf16:
    """Of a CUDA device of that compute capability."""
    first, own = ".".join(map(str, FIRST_FAST_CUDA)), ".".join(map(str, capability))
    if capability >= FIRST_FAST_CUDA:
        return FastBf16(has=True, why=f"{name} has compute capability {own} (>= {first})")
    return FastBf16(has=False, why=f"{name} has compute capability {own}, bf16 needs {first}")


def fast_bf16_here(kind: str = "cpu") -> FastBf16:
    """Of this process's device of a kind, as torch names it (`cpu`, `cuda`)."""
    if kind == "cpu":
        return fast_bf16_of_cpu(*cpu_model_and_flags())
    if kind == "cuda":
        import torch

        return fast_bf16_of_cuda(torch.cuda.get_device_name(), torch.cuda.get_device_capability())
    return FastBf16(has=False, why=f"whether a device of kind `{kind}` has fast bf16 is not known")


def choose_precision(asked: Precision, towers: Sequence[FastBf16]) -> PrecisionChoice:
    """One precision for all towers: `auto` takes bf16 where every one of them has it in hardware."""
    lacking = [(index, tower) for index, tower in enumerate(towers) if not tower.has]
    if asked is Precision.FP32:
        return PrecisionChoice(asked=asked, taken=Precision.FP32, why="as the job says")
    if not lacking:
        why = "; ".join(dict.fromkeys(tower.why for tower in towers))
        said = f"auto: {why}" if asked is Precision.AUTO else f"as the job says; {why}"
        return PrecisionChoice(asked=asked, taken=Precision.BF16, why=said)
    index, first = lacking[0]
    who = first.why if len(lacking) == len(towers) else f"tower {index}: {first.why}"
    if asked is Precision.AUTO:
        return PrecisionChoice(asked=asked, taken=Precision.FP32, why=f"auto: {who}")
    return PrecisionChoice(asked=asked, taken=Precision.BF16, why=f"as the job says; emulated, so slower: {who}")
