"""Loads with a name, so that a benchmark, the planner's table and a reader mean the same one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final


@dataclass(frozen=True, slots=True)
class Shape:
    """why: what it is there for. waves: requests per one that runs at once. utilization: of each device's memory.

    stream_interval: tokens per message of the servers' streams, above 1 where one API server would be what is measured.
    """

    why: str
    model: str
    prompt: int
    output: int
    concurrency: tuple[int, ...]
    parts: tuple[str, ...]
    waves: int = 2
    utilization: float = 0.85
    max_rows: int = 1024
    stream_interval: int = 8


_FIRST: Final = ("native4", "dp4ep", "3A1F:dbo", "2A2F", "3A1F", "1A3F")
_MORE: Final = ("2A2F:dbo", "1A3F:dbo", "1A1F-tp2-ep2", "native4:eager", "2A2F:eager", "3A1F:eager", "1A3F:eager")
_SHORT: Final = (256, 512, 1024, 2048)
_SMALLER: Final = "80 GiB of memory, as smaller devices have, leave replicas little room for their caches"

#: Four devices, unless the name ends with 2. 0.51 of an H200's memory is 0.9 of 80 GiB.
SHAPES: Final[Mapping[str, Shape]] = MappingProxyType(
    {
        "v2": Shape("short prompts", "v2-lite", 256, 256, _SHORT, _FIRST),
        "v2-modes": Shape("the same, other modes", "v2-lite", 256, 256, (256, 1024), _MORE),
        "v2-long": Shape("long prompts", "v2-lite", 4096, 256, (256, 512), _FIRST),
        "qwen": Shape("short prompts", "qwen3-30b", 256, 256, _SHORT, _FIRST),
        "qwen-modes": Shape("the same, other modes", "qwen3-30b", 256, 256, (256, 1024), _MORE),
        "qwen-long": Shape("long prompts", "qwen3-30b", 4096, 256, (256, 512), _FIRST),
        "v2-balance": Shape(
            "attention takes twice the FFN's time in 3A1F",
            "v2-lite",
            4096,
            1024,
            (1024,),
            ("native4", "3A1F:dbo", "3A1F", "dp4ep"),
            waves=1,
        ),
        "qwen-balance": Shape(
            "attention takes twice the FFN's time in 3A1F",
            "qwen3-30b",
            4096,
            512,
            (840,),
            ("native4", "3A1F:dbo", "3A1F", "dp4ep"),
            waves=1,
        ),
        "qwen-room": Shape(
            _SMALLER,
            "qwen3-30b",
            1024,
            512,
            (2048,),
            ("native4", "3A1F:dbo", "2A2F", "2A2F:dbo", "dp4ep"),
            waves=1,
            utilization=0.51,
        ),
        "qwen-room2": Shape(
            _SMALLER,
            "qwen3-30b",
            1024,
            512,
            (512,),
            ("native2", "1A1F", "1A1F:dbo", "dp2ep"),
            waves=1,
            utilization=0.51,
            max_rows=512,
        ),
    }
)
