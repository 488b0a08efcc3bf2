"""What tools/bench_topologies.py tells of requests that the loss of an FFN server did not leave as they should be."""

from __future__ import annotations

from types import SimpleNamespace

from tools.topologies import faults

NATIVE = [[5, 6, 7, 8], [1, 2, 3, 4]]


def stream(tokens: list[int], error: str | None = None, ended_at: float = 20.0) -> SimpleNamespace:
    return SimpleNamespace(tokens=tokens, times=[10.0 + n for n in range(len(tokens))], error=error, ended_at=ended_at)


def told(*servers: list[SimpleNamespace]) -> list[str]:
    return list(faults.told(servers, NATIVE, killed=11.5))  # type: ignore[arg-type]


def test_nothing_of_requests_with_native_tokens() -> None:
    assert told([stream(NATIVE[0]), stream(NATIVE[1])], [stream(NATIVE[0]), stream(NATIVE[1])]) == []


def test_errors_by_how_soon_they_came() -> None:
    [line] = told([stream([5, 6], "HTTP 500", 12.0), stream([1], "HTTP 500", 13.0)])
    assert line == "2 of 2 requests ended with an error within 1.5 s of the kill: HTTP 500"


def test_a_false_token_by_its_place_and_moment() -> None:
    [line] = told([stream(NATIVE[0]), stream(NATIVE[1])], [stream([5, 6, 7, 9]), stream([1, 2])])
    assert line == (
        "request 0 of attention server 1 has other tokens than native vLLM from number 3 on, which came 1.50 s after "
        "the kill"
    )
