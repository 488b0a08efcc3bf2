"""Ends a worker's process when its server loop died, since nobody else looks at that loop."""

from __future__ import annotations

import os
import signal
import threading

EXIT_CODE = 70  # "internal software error", should the polite signal not end the process
GRACE_S = 5.0


def end_process(_error: BaseException) -> None:
    """Ends this process within GRACE_S seconds: engine and API server see it, and a supervisor restarts the role."""
    force = threading.Timer(GRACE_S, os._exit, (EXIT_CODE,))
    force.daemon = True
    force.start()
    os.kill(os.getpid(), signal.SIGTERM)
