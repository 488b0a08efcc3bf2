"""The offline engine of tools.gpu.engine, asked for whatever vLLM's features give.

python -m tools.gpu.asking '{"options": {...}}'   (jobs: {"op": "answer", "ask": {...}})
"""

from __future__ import annotations

import traceback
from collections.abc import Mapping

from tools.asks import Ask, answer
from tools.gpu import engine


class Asked(engine.Engine):
    """One more job."""

    def answer(self, ask: Mapping[str, object]) -> dict[str, object]:
        """All that the engine answers, or how it refuses or fails: what is asked next still has an answer."""
        try:
            return {"answer": answer(self._llm, Ask(**ask))}  # type: ignore[arg-type]
        except Exception as error:  # noqa: BLE001
            traceback.print_exc()
            return {"answer": f"{type(error).__name__}: {error}"}


if __name__ == "__main__":
    engine.main(Asked)
