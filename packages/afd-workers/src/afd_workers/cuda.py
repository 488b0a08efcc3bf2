"""The CUDA platform's place: its name is taken, its runtime is not there yet."""


def unavailable() -> str:
    """What is missing before both roles can run on CUDA."""
    return "the CUDA workers and the nccl-p2p transport are not part of this version, so run both roles on CPU."
