"""The vLLM releases that the declarations of this package were tested with."""

from __future__ import annotations

from typing import Final

TESTED: Final = ">=0.30,<0.34"
