"""``/health`` and ``/ready`` of an attention server: alive, and whether requests get on or wait for an FFN rank.

vLLM's ``--middleware afd_workers.health.Health`` puts it in place; ``afd serve`` does so for its attention server.

========  ===========================  ==============================================================
status    when                         meaning
========  ===========================  ==============================================================
serving   every FFN rank is connected  requests get on
waiting   a request stands in an       it goes on by itself when that rank, or a standby for it, is
          exchange with a lost rank    reached; after recovery_timeout_s the engine ends
lost      a rank went away while       the next request reconnects, and waits if it has to
          nothing was asked
========  ===========================  ==============================================================

``/health`` is liveness, and its status code stays vLLM's own: 200 while the engine lives, 503 when it is dead. A
waiting server must not be restarted, since a restart loses the requests that waiting saves. ``/ready`` is readiness:
503 also while requests wait. A server with the status "lost" stays ready, or nothing would ever make it reconnect. The
body of both is JSON: ``{"status": "waiting", "for": ["FFN rank 0"], "since_s": 3.2}``.

A rank counts as lost when its connection ends, or when it owes an answer for timeout_s.
"""

from afd_workers.health.middleware import Health

__all__ = ["Health"]
