"""What an FFN rank computes before a step never makes attention wait twice in a row."""

from __future__ import annotations

from afd_workers.rehearsal import AT_ONCE_S, PAUSE_STEPS, Rehearsal


class Clock:
    """A time that the test sets."""

    now = 10.0

    def __call__(self) -> float:
        return self.now


def rehearsal() -> tuple[Rehearsal, Clock, list[object]]:
    """One that counts what it computed."""
    clock, computed = Clock(), list[object]()
    made = Rehearsal(lambda row: computed.append(row), "row", clock)  # type: ignore[arg-type, return-value, func-returns-value]
    return made, clock, computed


def test_one_is_made_per_step_while_exchanges_come_after_its_end() -> None:
    rehearse, clock, computed = rehearsal()
    for step in range(1, 4):
        rehearse()
        assert rehearse.ended
        clock.now += 2 * AT_ONCE_S
        rehearse.judge()
        assert (computed, rehearse.ended) == (["row"] * step, False)


def test_after_one_that_an_exchange_had_to_wait_for_there_is_a_pause() -> None:
    rehearse, clock, computed = rehearsal()
    rehearse()
    clock.now += AT_ONCE_S / 2
    rehearse.judge()
    for _ in range(PAUSE_STEPS):
        rehearse()
        assert not rehearse.ended
    assert len(computed) == 1
    rehearse()
    assert len(computed) == 2
