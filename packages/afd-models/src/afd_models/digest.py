"""A short digest of a checkpoint by which both roles make sure that they serve the same model."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

#: Entries of config.json that say nothing about the weights.
_IGNORED = frozenset({"_name_or_path", "transformers_version", "architectures"})
_SAMPLES = 16
_SAMPLE_BYTES = 4096
#: The most that the format lets a file's header take; what says more is no such file.
_HEADER_BYTES = 100_000_000


def model_digest(config: Mapping[str, object], folder: Path | None) -> str:
    """16 hex digits over the model's config and, where ``folder`` holds it, samples of every safetensors file.

    Reads at most 64 KiB and the header of each file, so that a checkpoint of any size costs milliseconds; two
    checkpoints that differ only between the samples are not told apart.
    """
    known = {key: value for key, value in config.items() if key not in _IGNORED}
    digest = hashlib.sha256(json.dumps(known, sort_keys=True, default=str).encode())
    for file in sorted(folder.glob("*.safetensors")) if folder is not None else ():
        digest.update(file.name.encode())
        for part in _samples(file):
            digest.update(part)
    return digest.hexdigest()[:16]


def _samples(file: Path) -> Iterator[bytes]:
    size = file.stat().st_size
    yield size.to_bytes(8, "little")
    with file.open("rb") as stream:
        length = min(int.from_bytes(stream.read(8), "little"), size, _HEADER_BYTES)
        yield stream.read(length)  # the header: names, dtypes and shapes of all tensors
        for index in range(_SAMPLES):
            stream.seek(length + (size - length) * index // _SAMPLES, os.SEEK_SET)
            yield stream.read(_SAMPLE_BYTES)
