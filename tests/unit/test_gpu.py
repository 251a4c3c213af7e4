"""How busy a GPU is: as its driver tells, at most once a second, and nothing where nobody can tell."""

from typing import Any

import pytest
import torch

from heddle.clock import ManualClock
from heddle.consumers.learners import gpu
from heddle.consumers.learners.gpu import Gpu

CUDA = torch.device("cuda", 0)


class Driver:
    """NVML with one device. `says` is what it answers, a code or the percentage."""

    def __init__(self, percent: int = 37, *, code: int = 0, knows: str = "GPU-1") -> None:
        self.percent, self.code, self._knows = percent, code, knows
        self.asked = 0

    def nvmlInit_v2(self) -> int:  # noqa: N802  its name
        return 0

    def nvmlDeviceGetHandleByUUID(self, uuid: bytes, handle: Any) -> int:  # noqa: N802
        handle._obj.value = 7
        return 0 if uuid.decode() == self._knows else 6

    def nvmlDeviceGetUtilizationRates(self, handle: Any, found: Any) -> int:  # noqa: N802
        assert handle.value == 7
        self.asked += 1
        found._obj.gpu = self.percent
        return self.code


@pytest.fixture(autouse=True)
def held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "device_bytes", lambda device: 4096 if device.type == "cuda" else None)


def test_it_is_told_as_a_share_and_asked_at_most_once_a_second() -> None:
    driver, clock = Driver(), ManualClock()
    watched = Gpu(CUDA, clock=clock, load=lambda: driver, uuid="GPU-1")
    before = driver.asked
    assert [watched.metrics() for _ in range(5)] == [{"gpu_bytes": 4096.0, "gpu_use": 0.37}] * 5
    assert driver.asked == before + 1
    driver.percent = 90
    clock.advance(1.0)
    assert watched.metrics()["gpu_use"] == 0.9


@pytest.mark.parametrize("driver", [Driver(code=3), Driver(knows="GPU-2"), object()], ids=["MIG", "another", "old"])
def test_a_driver_that_cannot_tell_leaves_it_out(driver: Any) -> None:
    assert Gpu(CUDA, load=lambda: driver, uuid="GPU-1").metrics() == {"gpu_bytes": 4096.0}


def test_without_the_drivers_library_it_is_left_out_and_without_a_gpu_nothing_is_asked() -> None:
    def missing() -> Any:
        raise OSError("libnvidia-ml.so.1: cannot open shared object file")

    assert Gpu(CUDA, load=missing, uuid="GPU-1").metrics() == {"gpu_bytes": 4096.0}
    assert Gpu(torch.device("cpu"), load=missing).metrics() == {}


def test_what_ceases_to_be_told_is_left_out() -> None:
    driver, clock = Driver(), ManualClock()
    watched = Gpu(CUDA, clock=clock, load=lambda: driver, uuid="GPU-1")
    assert "gpu_use" in watched.metrics()
    driver.code = 999
    clock.advance(1.0)
    assert watched.metrics() == {"gpu_bytes": 4096.0}


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_real_gpu_says_how_busy_it_is() -> None:
    told = Gpu(torch.device("cuda", torch.cuda.current_device())).metrics()
    assert 0.0 <= told["gpu_use"] <= 1.0
