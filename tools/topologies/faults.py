"""What was wrong with requests that a killed FFN server held up: errors, and tokens that are not native vLLM's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tools.streams import Stream

_SHOWN = 300


def told(servers: Sequence[Sequence[Stream]], native: Sequence[Sequence[int]], killed: float) -> Iterator[str]:
    """Lines; none where all is right. native: of each request of a server. killed: when the FFN server was."""
    streams = [stream for each in servers for stream in each]
    failed = [stream for stream in streams if stream.error is not None]
    if failed:
        last = max(stream.ended_at for stream in failed) - killed
        errors = "; ".join(sorted({str(stream.error) for stream in failed}))
        yield (
            f"{len(failed)} of {len(streams)} requests ended with an error within {last:.1f} s of the kill: "
            f"{errors[:_SHOWN]}"
        )
    for server, each in enumerate(servers):
        for request, (stream, right) in enumerate(zip(each, native, strict=True)):
            first = first_false(stream.tokens, right)
            if first is not None:
                yield (
                    f"request {request} of attention server {server} has other tokens than native vLLM from number "
                    f"{first} on, which came {stream.times[first] - killed:.2f} s after the kill"
                )


def first_false(found: Sequence[int], right: Sequence[int]) -> int | None:
    """Where `found` first has another token than `right`, as far as it goes."""
    pairs = zip(found, right, strict=False)
    return next((place for place, (one, other) in enumerate(pairs) if one != other), None)
