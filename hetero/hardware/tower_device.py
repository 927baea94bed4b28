"""Where a tower computes and holds the rows of its windows: on the host with kernels of its own, or on a device."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from hetero.errors import CapacityError, JobError
from hetero.records import HOST_DEVICE

_SHARE_OF_FREE = 0.9
"""Of a device's free memory, the most that leased rows may ask for: batches, the tower and its optimizer need some."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TowerDevice:
    """device: of the tower's tensors. holds_rows: whether leased rows are tensors there too (the device tier), or
    arrays in host memory that CPU kernels work on. name: for people."""

    device: torch.device
    holds_rows: bool
    name: str

    @property
    def kind(self) -> str:
        """As torch names it."""
        return self.device.type


ON_HOST = TowerDevice(device=torch.device("cpu"), holds_rows=False, name="host")


def tower_device(wanted: str, *, window_bytes: int) -> TowerDevice:
    """This process's device for a tower. wanted: `roles.towers.device`. window_bytes: that leased rows may take.

    Raises JobError when there is no such device here, CapacityError when its memory cannot hold the leased rows.
    """
    if wanted == HOST_DEVICE:
        return ON_HOST
    try:
        device = torch.device(wanted)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise JobError(
            f"roles.towers.device: there is no device `{wanted}` for a tower here, with torch {torch.__version__} "
            f"({str(error).splitlines()[0]}); set it to `{HOST_DEVICE}`, or run towers where there is one"
        ) from error
    if device.type != "cuda":
        return TowerDevice(device=device, holds_rows=True, name=wanted)
    device = torch.device("cuda", torch.cuda.current_device() if device.index is None else device.index)
    name = torch.cuda.get_device_name(device)
    check_room(*torch.cuda.mem_get_info(device), window_bytes=window_bytes, name=name)
    return TowerDevice(device=device, holds_rows=True, name=f"{device} ({name})")


def check_room(free_bytes: int, total_bytes: int, *, window_bytes: int, name: str) -> None:
    """Raises CapacityError when leased rows may take more than a device has to spare."""
    room = int(free_bytes * _SHARE_OF_FREE)
    if window_bytes > room:
        raise CapacityError(
            f"train.window_bytes: {window_bytes} bytes for leased rows, but {name} has {free_bytes} of {total_bytes} "
            f"bytes free, of which rows may take {room}; lower train.window_bytes, or free the device's memory"
        )
