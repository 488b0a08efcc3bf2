"""All that is asked of CUDA, in one place: memory that another process can map, kernels compiled here."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from afd_connectors.errors import ConnectorError
from afd_connectors.transports.nvlink.kernels import Memory, checked, load
from afd_connectors.transports.nvlink.sizes import THREADS

if TYPE_CHECKING:
    import torch
    from torch import Tensor


class Driver:
    """The CUDA device that is current on the thread that makes it.

    Addresses stay the same however often other memory is mapped at them, which is what lets graphs outlive a peer.
    device, capability: torch's number of it, and its compute capability.
    """

    def __init__(self) -> None:
        import torch

        try:
            from cuda.bindings import driver
        except ImportError as error:
            raise ConnectorError(
                f"the nvlink connector needs cuda-bindings, which torch for CUDA brings, found none ({error})."
            ) from error
        torch.cuda.current_stream()  # makes the device's context, which the calls below need
        self._cuda = driver
        self.device = torch.cuda.current_device()
        self._place = driver.CUmemLocation()
        self._place.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        self._place.id = self.device
        self._property = driver.CUmemAllocationProp()
        self._property.type = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        self._property.location = self._place
        self._handles = driver.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
        self._property.requestedHandleTypes = self._handles
        self._unit = self._do(
            driver.cuMemGetAllocationGranularity(
                self._property, driver.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_RECOMMENDED
            ),
            "cuMemGetAllocationGranularity",
        )
        self._early = driver.CUlaunchAttribute()
        self._early.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
        self._early.value.programmaticStreamSerializationAllowed = 1
        self.capability = torch.cuda.get_device_capability(self.device)
        try:
            self._functions = dict(load(self.device, "sm_{}{}".format(*self.capability)))
        except RuntimeError as error:  # what cuda-bindings raises where a library is not there
            raise ConnectorError(
                f"the nvlink connector compiles its kernels with libnvrtc, which torch for CUDA brings: {error}."
            ) from error

    def learn(self, functions: Mapping[str, object]) -> None:
        """More kernels by name."""
        self._functions.update(functions)

    def reserve(self, size: int) -> int:
        """Addresses without memory."""
        return int(self._do(self._cuda.cuMemAddressReserve(self._whole(size), self._unit, 0, 0), "cuMemAddressReserve"))

    def release(self, address: int, size: int) -> None:
        """Gives reserved addresses back."""
        self._do(self._cuda.cuMemAddressFree(address, self._whole(size)), "cuMemAddressFree")

    def create(self, size: int) -> tuple[Memory, int]:
        """New memory at no address yet, and a descriptor of it for the other process, to be closed."""
        handle = self._do(self._cuda.cuMemCreate(self._whole(size), self._property, 0), "cuMemCreate")
        try:
            descriptor = self._do(
                self._cuda.cuMemExportToShareableHandle(handle, self._handles, 0), "cuMemExportToShareableHandle"
            )
        except ConnectorError:
            self.drop(handle)
            raise
        return handle, int(descriptor)

    def adopt(self, descriptor: int) -> Memory:
        """The other process's memory, at no address yet."""
        return self._do(
            self._cuda.cuMemImportFromShareableHandle(descriptor, self._handles), "cuMemImportFromShareableHandle"
        )

    def drop(self, memory: Memory) -> None:
        """Lets go of memory; what is placed keeps it."""
        self._do(self._cuda.cuMemRelease(memory), "cuMemRelease")

    def place(self, address: int, size: int, memory: Memory) -> None:
        """Puts memory under reserved addresses."""
        whole = self._whole(size)
        self._do(self._cuda.cuMemMap(address, whole, 0, memory, 0), "cuMemMap")
        access = self._cuda.CUmemAccessDesc()
        access.location = self._place
        access.flags = self._cuda.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
        try:
            self._do(self._cuda.cuMemSetAccess(address, whole, [access], 1), "cuMemSetAccess")
        except ConnectorError:
            self._cuda.cuMemUnmap(address, whole)
            raise

    def detach(self, address: int, size: int) -> None:
        """Takes the memory away from under addresses; nothing on the device may use them."""
        self._do(self._cuda.cuMemUnmap(address, self._whole(size)), "cuMemUnmap")

    def own(self, size: int) -> int:
        """Memory of this process alone."""
        return int(self._do(self._cuda.cuMemAlloc(size), "cuMemAlloc"))

    def host(self, size: int) -> int:
        """Host memory that the device reads and writes at the same address."""
        flags = self._cuda.CU_MEMHOSTALLOC_PORTABLE | self._cuda.CU_MEMHOSTALLOC_DEVICEMAP
        address = int(self._do(self._cuda.cuMemHostAlloc(size, flags), "cuMemHostAlloc"))
        ctypes.memset(address, 0, size)
        return address

    def free(self, own: int) -> None:
        """Gives back what `own` gave."""
        self._do(self._cuda.cuMemFree(own), "cuMemFree")

    def free_host(self, host: int) -> None:
        """Gives back what `host` gave."""
        self._do(self._cuda.cuMemFreeHost(host), "cuMemFreeHost")

    def fill(self, address: int, size: int, byte: int) -> None:
        """Waits until it is done."""
        stream = self._do(self._cuda.cuStreamCreate(1), "cuStreamCreate")
        try:
            self._do(self._cuda.cuMemsetD8Async(address, byte, size, stream), "cuMemsetD8Async")
            self._do(self._cuda.cuStreamSynchronize(stream), "cuStreamSynchronize")
        finally:
            self._cuda.cuStreamDestroy(stream)

    def idle(self) -> None:
        """Waits until the device has done all that it was given; every wait on it has a limit."""
        self._do(self._cuda.cuCtxSynchronize(), "cuCtxSynchronize")

    def mark(self) -> Callable[[], bool]:
        """Asks whether the device has done what the calling thread's current stream was given until now."""
        import torch

        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(self.device))
        return event.query

    def tensor(self, address: int, rows: int, hidden: int, dtype: torch.dtype) -> Tensor:
        """[rows, hidden] over memory at an address."""
        import torch

        held = _Bytes(address, rows * hidden * dtype.itemsize)
        found: Tensor = torch.as_tensor(held, device=f"cuda:{self.device}")
        return found.view(dtype).view(rows, hidden)

    def launch(self, kernel: str, grid: tuple[int, int], arguments: bytes, stream: int, *, early: bool) -> None:
        """Enqueues a kernel with one argument; early: it may begin before its predecessor ends, for which it waits."""
        config = self._cuda.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = *grid, 1
        config.blockDimX, config.blockDimY, config.blockDimZ = THREADS, 1, 1
        config.hStream = stream
        if early:
            config.attrs, config.numAttrs = [self._early], 1
        held = ctypes.create_string_buffer(arguments, len(arguments))
        parameters = (ctypes.c_void_p * 1)(ctypes.addressof(held))
        self._do(
            self._cuda.cuLaunchKernelEx(config, self._functions[kernel], ctypes.addressof(parameters), 0),
            "cuLaunchKernelEx",
        )

    def _whole(self, size: int) -> int:
        return -(-size // self._unit) * self._unit

    def _do(self, answer: Sequence[object], call: str) -> Memory:
        return checked(answer, call)


class _Bytes:
    """Memory as torch takes it from others."""

    def __init__(self, address: int, size: int) -> None:
        self.__cuda_array_interface__ = {"shape": (size,), "typestr": "|u1", "data": (address, False), "version": 3}
