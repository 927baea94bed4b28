"""Copies between host memory and a tower's device, beside the steps: through pinned buffers, on streams of their own.

On CUDA a copy to the device and one from it run at the same time as the step's kernels; whoever uses what was copied
waits for it by an event, on the device or on the host. Torch's pinned allocator reuses a buffer once the copy that
reads or fills it is done. Other devices copy at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from hetero.exchange.traffic import Traffic
from hetero.kernels.pooling_torch import tensor_of
from hetero.records import F32


@dataclass(frozen=True, slots=True)
class Brought:
    """Tensors under way to a device. done: the event that ends the copy, None when it has ended."""

    tensors: tuple[Tensor, ...]
    done: torch.cuda.Event | None

    def take(self) -> tuple[Tensor, ...]:
        """The tensors, for the current stream: what it does from here on waits for the copy; the host does not."""
        if self.done is not None:
            stream = torch.cuda.current_stream(self.tensors[0].device)
            stream.wait_event(self.done)
            for tensor in self.tensors:
                tensor.record_stream(stream)
        return self.tensors


@dataclass(frozen=True, slots=True)
class Landing:
    """A tensor under way to the host. done: as of `Brought`."""

    tensor: Tensor
    done: torch.cuda.Event | None

    def here(self) -> bool:
        """Whether `result` would not wait."""
        return self.done is None or bool(self.done.query())  # type: ignore[no-untyped-call]

    def result(self) -> np.ndarray:
        """Wait for it."""
        if self.done is not None:
            self.done.synchronize()
        array: np.ndarray = self.tensor.numpy()
        return array


class Copies:
    """Copies to and from one device. traffic: where their bytes are counted."""

    def __init__(self, device: torch.device, traffic: Traffic) -> None:
        self.device = device
        self._traffic = traffic
        on_cuda = device.type == "cuda"
        self._in = torch.cuda.Stream(device) if on_cuda else None  # type: ignore[no-untyped-call]
        self._out = torch.cuda.Stream(device) if on_cuda else None  # type: ignore[no-untyped-call]

    def bring(self, arrays: Sequence[np.ndarray]) -> Brought:
        """Begin to copy arrays to the device; they may be reused at once."""
        self._traffic.to_device += sum(array.nbytes for array in arrays)
        if self._in is None:
            return Brought(tuple(self._copied(array) for array in arrays), None)
        done = torch.cuda.Event()  # type: ignore[no-untyped-call]
        with torch.cuda.stream(self._in):
            tensors = tuple(tensor_of(array, device=self.device) for array in arrays)
            done.record(self._in)
        return Brought(tensors, done)

    def here(self, array: np.ndarray) -> Tensor:
        """A small array on the device, in the order of the current stream; the host waits for nothing."""
        self._traffic.to_device += array.nbytes
        return self._copied(array)

    def _copied(self, array: np.ndarray) -> Tensor:
        """On a device of any kind, never sharing the array's memory."""
        return torch.tensor(array) if self.device.type == "cpu" else tensor_of(array, device=self.device)

    def send(self, tensor: Tensor) -> Landing:
        """Begin to copy a tensor, as the current stream leaves it, to the host. It must not be written to any more."""
        self._traffic.from_device += tensor.nbytes
        if self._out is None:
            return Landing(tensor.cpu() if tensor.device.type != "cpu" else tensor, None)
        done = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._out.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self._out):
            host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
            host.copy_(tensor, non_blocking=True)
            tensor.record_stream(self._out)
            done.record(self._out)
        return Landing(host, done)


def on_host(tensors: Sequence[Tensor]) -> tuple[F32, ...]:
    """Tensors as arrays in host memory; on the CPU without a copy."""
    return tuple(tensor.detach().cpu().numpy() for tensor in tensors)


def as_tensors(arrays: Sequence[F32]) -> tuple[Tensor, ...]:
    """Arrays as tensors that share their memory."""
    return tuple(torch.from_numpy(array) for array in arrays)
