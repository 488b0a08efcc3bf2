"""Streamed completions of many clients at once, with the moment of each token."""

from __future__ import annotations

import http.client
import json
import math
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from itertools import pairwise

_SILENCE_S = 150.0  # how long a client waits for its next token
_LOOK_S = 0.2


class Stream:
    """One client's greedy completion of exactly ``count`` tokens.

    tokens, times: token ids and the time.monotonic() seconds at which each arrived; error: why it ended early;
    ended_at: when nothing more came, infinite until then.
    """

    def __init__(self, base: str, prompt: Sequence[int], count: int, model: str) -> None:
        self.tokens: list[int] = []
        self.times: list[float] = []
        self.error: str | None = None
        self.ended_at = math.inf
        self._done = False
        body = {
            "model": model, "prompt": list(prompt), "max_tokens": count, "min_tokens": count, "ignore_eos": True,
            "temperature": 0, "stream": True, "return_token_ids": True,
        }  # fmt: skip
        self._request = urllib.request.Request(
            f"{base}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def ended(self) -> bool:
        """Whether nothing more will come."""
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            with urllib.request.urlopen(self._request, timeout=_SILENCE_S) as answer:
                for line in answer:
                    self._take(line.decode().strip().removeprefix("data: "))
            if not self._done and self.error is None:
                self.error = "the stream ended early"
        except urllib.error.HTTPError as error:
            self.error = f"HTTP {error.code}"
        except (OSError, http.client.HTTPException) as error:
            self.error = f"{type(error).__name__}: {error}"
        self.ended_at = time.monotonic()

    def _take(self, event: str) -> None:
        if event == "[DONE]":
            self._done = True
        if self._done or not event:
            return
        said = json.loads(event)
        if "error" in said:
            self.error = str(said["error"])
            return
        for choice in said["choices"]:
            found = choice["token_ids"] or []
            self.tokens += found
            self.times += [time.monotonic()] * len(found)


class Crowd:
    """All prompts at once, each a client of its own."""

    def __init__(self, base: str, prompts: Sequence[Sequence[int]], count: int, model: str = "toy") -> None:
        self.streams = [Stream(base, prompt, count, model) for prompt in prompts]

    def wait_tokens(self, count: int, timeout_s: float = 60.0) -> None:
        """Until each client has ``count`` tokens."""
        _wait(
            f"{count} tokens for every client ({self.errors or 'no errors'})",
            lambda: all(len(stream.tokens) >= count for stream in self.streams),
            timeout_s,
        )

    def wait_end(self, timeout_s: float) -> None:
        """Until no client waits any more."""
        _wait("the end of every client", lambda: all(stream.ended for stream in self.streams), timeout_s)

    @property
    def tokens(self) -> list[list[int]]:
        """By prompt."""
        return [stream.tokens for stream in self.streams]

    @property
    def errors(self) -> list[str]:
        """Of the clients that had one."""
        return [stream.error for stream in self.streams if stream.error is not None]

    def times_after(self, moment: float) -> list[float]:
        """When any client got a token after ``moment``."""
        return [at for stream in self.streams for at in stream.times if at > moment]

    def next_after(self, moment: float) -> float:
        """Seconds from ``moment`` to the first token that any client got after it."""
        later = self.times_after(moment)
        assert later, "no client got a token after the fault"
        return min(later) - moment

    def longest_pause(self) -> float:
        """The longest time in seconds in which no client got a token, once each had one."""
        times = sorted(at for stream in self.streams for at in stream.times)
        begun = max(stream.times[0] for stream in self.streams)
        return max(later - earlier for earlier, later in pairwise(times) if earlier >= begun)

    def rate(self) -> float:
        """Tokens per second of all clients, from the first token to the last."""
        times = sorted(at for stream in self.streams for at in stream.times)
        return (len(times) - 1) / (times[-1] - times[0])


def _wait(what: str, condition: Callable[[], bool], timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"Expected {what} within {timeout_s:g} s, found none of it: read the servers' logs.")
        time.sleep(_LOOK_S)
