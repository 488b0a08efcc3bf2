"""Compiles the kernels where they run, once per process."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib.resources import files

from afd_connectors.errors import ConnectorError
from afd_connectors.transports.nvlink.failed import CallFailed

Memory = int  # a handle, as the library gives it
SOURCES = ("kernels.cu", "units.cu")  # one behind the other
KERNELS = ("afd_put", "afd_wait", "afd_await", "afd_copy", "afd_put_units", "afd_wait_units")


def checked(answer: Sequence[object], call: str) -> Memory:
    """The value of a call's answer; CallFailed when it failed."""
    code, *values = answer
    if int(code):  # type: ignore[call-overload]
        raise CallFailed(call, str(getattr(code, "name", code)))
    return values[0] if values else 0  # type: ignore[return-value]


@cache
def load(device: int, architecture: str) -> dict[str, object]:  # noqa: ARG001  # a part of the key
    """The kernels by name for the device, which is current, such as (0, "sm_90")."""
    from cuda.bindings import driver

    image = compiled("".join(files(__package__).joinpath(name).read_text() for name in SOURCES), architecture)
    module = checked(driver.cuModuleLoadData(image), "cuModuleLoadData")
    return {name: checked(driver.cuModuleGetFunction(module, name.encode()), "cuModuleGetFunction") for name in KERNELS}


@cache
def compiled(source: str, architecture: str) -> bytes:
    """A module for one architecture; ConnectorError with the compiler's words."""
    from cuda.bindings import nvrtc

    program = checked(nvrtc.nvrtcCreateProgram(source.encode(), b"kernels.cu", 0, [], []), "nvrtcCreateProgram")
    options = [f"--gpu-architecture={architecture}".encode(), b"--std=c++17"]
    (code,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
    if int(code):
        told = b" " * checked(nvrtc.nvrtcGetProgramLogSize(program), "nvrtcGetProgramLogSize")
        nvrtc.nvrtcGetProgramLog(program, told)
        raise ConnectorError(f"the nvlink kernels do not compile for {architecture}: {told.decode(errors='replace')}")
    image = b" " * checked(nvrtc.nvrtcGetCUBINSize(program), "nvrtcGetCUBINSize")
    checked(nvrtc.nvrtcGetCUBIN(program, image), "nvrtcGetCUBIN")
    nvrtc.nvrtcDestroyProgram(program)
    return image
