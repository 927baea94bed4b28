"""numpy's OpenBLAS can be held to one thread a call, and only AMD's CPUs are given to it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from hetero.hardware import blas


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    blas.numpy_multiplies_better.cache_clear()
    yield
    blas.numpy_multiplies_better.cache_clear()


def threads_of_openblas() -> list[int]:
    getters = [name.replace("_set_", "_get_") for name in blas._SETTERS]
    return [
        getattr(library, name)()
        for library in blas._loaded_openblas()
        for name in getters
        if getattr(library, name, None) is not None
    ]


def test_openblas_is_held_to_one_thread() -> None:
    np.matmul(np.ones((2, 2)), np.ones((2, 2)))
    if not blas.single_threaded_openblas():
        pytest.skip("numpy multiplies with another library here")
    found = threads_of_openblas()
    assert found
    assert set(found) == {1}


@pytest.mark.parametrize(("model", "expected"), [("AMD EPYC 7763", True), ("Intel(R) Xeon(R)", False), ("", False)])
def test_amd_cpus_are_given_to_it(monkeypatch: pytest.MonkeyPatch, model: str, expected: bool) -> None:
    monkeypatch.setattr(blas, "cpu_model_and_flags", lambda: (model, ()))
    monkeypatch.setattr(blas, "single_threaded_openblas", lambda: True)
    assert blas.numpy_multiplies_better() is expected


def test_without_a_library_that_can_be_held_torch_multiplies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blas, "cpu_model_and_flags", lambda: ("AMD EPYC 7763", ()))
    monkeypatch.setattr(blas, "_loaded_openblas", list)
    assert not blas.numpy_multiplies_better()
