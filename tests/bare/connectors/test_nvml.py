"""What the driver tells about the devices of a host decides whether they are said to reach each other."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import pytest

from afd_connectors import nvml


class Driver:
    """See libnvidia-ml: `count` devices, of which those in `apart` do not reach each other in the way given."""

    def __init__(
        self, count: int, apart: tuple[int, int, int] | None = None, *, broken: str = "", lacking: str = ""
    ) -> None:
        self.count, self.apart, self.broken, self.lacking, self.open = count, apart, broken, lacking, False

    def __getattr__(self, name: str) -> Callable[..., int]:
        if name == self.lacking:
            raise AttributeError(name)
        return lambda *given: 999 if name == self.broken else getattr(self, f"_{name.removeprefix('nvml')}")(*given)

    def _Init_v2(self) -> int:
        self.open = True
        return 0

    def _Shutdown(self) -> int:
        self.open = False
        return 0

    def _DeviceGetCount_v2(self, count: object) -> int:
        count._obj.value = self.count  # type: ignore[attr-defined]
        return 0

    def _DeviceGetHandleByIndex_v2(self, place: ctypes.c_uint, device: object) -> int:
        device._obj.value = 1000 + place.value  # type: ignore[attr-defined]
        return 0

    def _DeviceGetP2PStatus(self, one: ctypes.c_void_p, other: ctypes.c_void_p, what: int, status: object) -> int:
        assert one.value is not None
        assert other.value is not None
        status._obj.value = int((one.value - 1000, other.value - 1000, what) == self.apart)  # type: ignore[attr-defined]
        return 0


@pytest.mark.parametrize(
    ("driver", "told"),
    [
        (Driver(2), None),
        (Driver(8), None),
        (Driver(1), "1 device is seen here, of which two are needed"),
        (Driver(2, (1, 0, 2)), "device 1 cannot reach over NVLink device 0"),
        (Driver(4, (0, 3, 1)), "device 0 cannot store into the memory of device 3"),
        (Driver(2, broken="nvmlInit_v2"), "the driver does not answer"),
        (Driver(2, broken="nvmlDeviceGetCount_v2"), "the driver does not count its devices"),
        (Driver(2, broken="nvmlDeviceGetHandleByIndex_v2"), "the driver does not give device 0"),
        (Driver(2, broken="nvmlDeviceGetP2PStatus"), "device 0 cannot store into the memory of device 1"),
        (Driver(2, lacking="nvmlDeviceGetP2PStatus"), "the driver does not tell what its devices reach"),
    ],
)
def test_reach(driver: Driver, told: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda _name: driver)
    assert nvml.obstacle() == told
    assert not driver.open


def test_no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(_name: str) -> None:
        raise OSError("no such file")

    monkeypatch.setattr(ctypes, "CDLL", absent)
    assert nvml.obstacle() == "libnvidia-ml.so.1 cannot be loaded (no such file)"
