"""The GPU that a trainer learns on: what it holds there, and how busy it is.

How busy it is only its driver knows (NVML, which comes with it). It never fails for want of that: what nobody can tell
is left out, as it is on other devices.
"""

import ctypes
import logging
from collections.abc import Callable
from typing import Any

import torch

from heddle.clock import Clock, SystemClock
from heddle.consumers.learners.base import device_bytes

log = logging.getLogger("heddle.trainer")

EVERY_S = 1.0
"""The driver's own figure is of the last second or less."""
LIBRARY = "libnvidia-ml.so.1"


class Gpu:
    """A device; {} is told of one that is no GPU.

    Args:
        load: opens the driver's library; raises OSError where there is none.
        uuid: of the device, as the driver names it; None asks torch.
    """

    def __init__(
        self,
        device: torch.device,
        *,
        clock: Clock | None = None,
        load: Callable[[], Any] = lambda: ctypes.CDLL(LIBRARY),
        uuid: str | None = None,
    ) -> None:
        self._device = device
        self._clock = clock or SystemClock()
        self._again_at = 0.0
        self._use: float | None = None
        self._busy = _watch(load, uuid or _uuid(device)) if device.type == "cuda" else None

    def metrics(self) -> dict[str, float]:
        """`gpu_bytes`, and `gpu_use` from 0 to 1, the share of time in which it was busy, whoever it worked for."""
        held = device_bytes(self._device)
        told = {} if held is None else {"gpu_bytes": float(held)}
        if self._busy is not None and (now := self._clock.monotonic()) >= self._again_at:
            self._again_at, self._use = now + EVERY_S, self._busy()
        return told if self._use is None else {**told, "gpu_use": self._use}


class _Utilization(ctypes.Structure):
    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


def _uuid(device: torch.device) -> str:
    return f"GPU-{getattr(torch.cuda.get_device_properties(device), 'uuid', '')}"


def _watch(load: Callable[[], Any], uuid: str) -> Callable[[], float | None] | None:
    """What tells how busy a device is; None where nobody can: no NVML, or a part of a GPU (MIG)."""
    try:
        nvml = load()
        handle = ctypes.c_void_p()
        code = nvml.nvmlInit_v2() or nvml.nvmlDeviceGetHandleByUUID(uuid.encode(), ctypes.byref(handle))
    except (OSError, AttributeError) as error:
        log.info("does not know how busy its GPU is error=%s", error)
        return None

    def busy() -> float | None:
        found = _Utilization()
        if nvml.nvmlDeviceGetUtilizationRates(handle, ctypes.byref(found)):
            return None
        return float(found.gpu) / 100

    if code or busy() is None:
        log.info("does not know how busy its GPU is: NVML says nothing of %s", uuid)
        return None
    return busy
