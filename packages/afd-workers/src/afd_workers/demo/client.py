"""Asks an OpenAI-compatible vLLM server for greedy completions and takes the time."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypedDict, cast

_REQUEST_S = 60.0
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # the servers are on this host


class _Choice(TypedDict):
    text: str
    token_ids: list[int]


class _Completions(TypedDict):
    choices: list[_Choice]


class _Results(TypedDict):
    results: list[dict[str, float]]


@dataclass(frozen=True, slots=True)
class Completion:
    """One greedy completion; ``seconds`` from sending the request to its whole answer."""

    text: str
    tokens: tuple[int, ...]
    seconds: float


@dataclass(frozen=True, slots=True)
class Client:
    """One server. base: its URL without /v1; model: the name it serves."""

    base: str
    model: str

    def complete(self, prompt: str | list[int], tokens: int) -> Completion:
        """Exactly ``tokens`` greedy tokens after a text or its tokens; OSError when no answer comes within a minute."""
        body = {
            "model": self.model,
            "prompt": prompt,
            "max_tokens": tokens,
            "min_tokens": tokens,
            "ignore_eos": True,
            "temperature": 0,
            "return_token_ids": True,
        }
        started = time.perf_counter()
        answer = cast(_Completions, self._post("/v1/completions", body))
        choice = answer["choices"][0]
        return Completion(choice["text"], tuple(choice["token_ids"]), time.perf_counter() - started)

    def worker_figures(self, method: str) -> Mapping[str, float]:
        """What the first worker answers to ``method``, over the development route of vLLM's server."""
        return cast(_Results, self._post("/collective_rpc", {"method": method}))["results"][0]

    def _post(self, path: str, body: Mapping[str, object]) -> object:
        request = urllib.request.Request(
            f"{self.base}{path}", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        try:
            with _DIRECT.open(request, timeout=_REQUEST_S) as answer:
                parsed: object = json.load(answer)
                return parsed
        except urllib.error.HTTPError as error:
            detail = error.read(2000).decode(errors="replace")
            raise OSError(f"Expected an answer from {self.base}{path}, found HTTP {error.code}: {detail}") from error
