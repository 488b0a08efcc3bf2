"""Whether the devices of this host reach each other's memory, as NVIDIA's driver tells: torch sees only its own."""

from __future__ import annotations

import ctypes
import itertools

SONAME = "libnvidia-ml.so.1"
_NVLINK = 2  # NVML_P2P_CAPS_INDEX_NVLINK
_WRITE = 1  # NVML_P2P_CAPS_INDEX_WRITE
_POINTER = ctypes.c_void_p


def obstacle() -> str | None:
    """Why one device of this host may not store into another's memory over NVLink; None when every one can."""
    try:
        shared = ctypes.CDLL(SONAME)
    except OSError as error:
        return f"{SONAME} cannot be loaded ({error})"
    if shared.nvmlInit_v2():
        return "the driver does not answer"
    try:
        return _among(shared)
    except AttributeError:  # a library that lacks a call, as those of some virtual machines do
        return "the driver does not tell what its devices reach"
    finally:
        shared.nvmlShutdown()


def _among(shared: ctypes.CDLL) -> str | None:
    count = ctypes.c_uint()
    if shared.nvmlDeviceGetCount_v2(ctypes.byref(count)):
        return "the driver does not count its devices"
    if count.value < 2:
        return f"{count.value} device is seen here, of which two are needed"
    devices = [_POINTER() for _ in range(count.value)]
    for place, device in enumerate(devices):
        if shared.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(place), ctypes.byref(device)):
            return f"the driver does not give device {place}"
    for one, other in itertools.permutations(range(len(devices)), 2):
        for what, name in ((_WRITE, "store into the memory of"), (_NVLINK, "reach over NVLink")):
            status = ctypes.c_int(-1)
            code = shared.nvmlDeviceGetP2PStatus(devices[one], devices[other], what, ctypes.byref(status))
            if code or status.value:
                return f"device {one} cannot {name} device {other}"
    return None
