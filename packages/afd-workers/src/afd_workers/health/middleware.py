"""The ASGI middleware that answers ``/health`` and ``/ready`` with what vLLM says and what the board says."""

from __future__ import annotations

import json
import time
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from http import HTTPStatus
from typing import cast

from afd_workers.health import board
from afd_workers.health.standing import Standing, Status, worst

Scope = MutableMapping[str, object]
Message = MutableMapping[str, object]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

LIVE, READY = "/health", "/ready"


class Health:
    """In front of vLLM's whole application; anything but a GET of LIVE and READY passes through untouched."""

    def __init__(self, app: Application) -> None:
        self._app = app
        self._board = board.find()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request, as ASGI has it."""
        path = _path(scope)
        if path not in (LIVE, READY):
            await self._app(scope, receive, send)
            return
        native: list[Message] = []

        async def keep(message: Message) -> None:
            native.append(message)

        await self._app({**scope, "path": LIVE, "raw_path": LIVE.encode(), "root_path": ""}, receive, keep)
        code = next((message["status"] for message in native if message["type"] == "http.response.start"), None)
        standing = self._standing()
        if standing is None or code not in (HTTPStatus.OK, HTTPStatus.SERVICE_UNAVAILABLE):
            answer = native
        elif code != HTTPStatus.OK:
            answer = _answer(HTTPStatus.SERVICE_UNAVAILABLE, {"status": "dead"})
        else:
            waits = path == READY and standing.status is Status.WAITING
            found = HTTPStatus.SERVICE_UNAVAILABLE if waits else HTTPStatus.OK
            answer = _answer(found, standing.told(time.monotonic()))
        for message in answer:
            await send(message)

    def _standing(self) -> Standing | None:
        """What all ranks of this server amount to, None when none has said anything here."""
        said = {} if self._board is None else self._board.read()
        return worst(said.values()) if said else None


def _path(scope: Scope) -> str:
    """The path of a GET request without the prefix that a proxy was told to add; empty for anything else."""
    if scope["type"] != "http" or scope.get("method") != "GET":
        return ""
    return cast("str", scope["path"]).removeprefix(cast("str", scope.get("root_path", "")))


def _answer(code: HTTPStatus, body: Mapping[str, object]) -> list[Message]:
    content = json.dumps(body).encode()
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(content)).encode()),
        (b"cache-control", b"no-store"),
    ]
    return [
        {"type": "http.response.start", "status": int(code), "headers": headers},
        {"type": "http.response.body", "body": content},
    ]
