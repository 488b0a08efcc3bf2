"""Lets two roles agree on a CPU channel before anything is exchanged: facts, places, the shared secret."""

from __future__ import annotations

import hmac
import json
import secrets
import socket
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field

from afd_connectors.agreement import disagreement, one_sided_secret, wrong_secret
from afd_connectors.deadline import Deadline
from afd_connectors.errors import ConnectorError, FrameError, HandshakeRefused, one_line, quoted
from afd_connectors.facts import Facts
from afd_connectors.layout import Layout, Role

HELLO_S = 3.0
MAX_MESSAGE = 64 * 1024
_MOST_TEXT = 2048
_MOST_NUMBER = 2**32
_MAGIC = b"AFDH"
_HEAD = struct.Struct("<4sI")
Message = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Identity:
    """What a side says of itself."""

    layout: Layout
    facts: Facts
    secret: str | None = field(repr=False)


@dataclass(frozen=True, slots=True)
class Session:
    """What both sides know of an agreed channel; `token` and `proof` let a data connection join it."""

    rank: int
    token: str
    proof: str


def send_message(sock: socket.socket, message: Message, deadline: Deadline) -> None:
    """Writes one message; ConnectorError when the peer does not take it in time."""
    body = json.dumps(message).encode()
    try:
        sock.settimeout(max(deadline.remaining(), 0.001))
        sock.sendall(_HEAD.pack(_MAGIC, len(body)) + body)
    except OSError as error:
        raise ConnectorError(f"the handshake ended early: {error.strerror or error}") from error


def recv_message(sock: socket.socket, deadline: Deadline) -> Message:
    """Reads one message; FrameError for anything else, ConnectorError when it does not come in time."""
    magic, length = _HEAD.unpack(_exactly(sock, _HEAD.size, deadline))
    if magic != _MAGIC or not 0 < length <= MAX_MESSAGE:
        raise FrameError(f"a handshake message starts with {_MAGIC!r} and its length, found {magic!r} and {length}.")
    try:
        message = json.loads(_exactly(sock, length, deadline))
    except (ValueError, RecursionError) as error:
        raise FrameError("a handshake message holds JSON, found something else.") from error
    if not isinstance(message, dict):
        raise FrameError(f"a handshake message is a JSON object, found {type(message).__name__}.")
    return message


def _exactly(sock: socket.socket, count: int, deadline: Deadline) -> bytearray:
    data = bytearray()  # grows in place: a stranger may send a message in tens of thousands of pieces
    while len(data) < count:
        if deadline.passed:  # one limit over the whole handshake, or a byte a second would hold the place for ever
            raise ConnectorError(f"the handshake was not complete after {deadline.seconds:g} s.")
        try:
            sock.settimeout(deadline.remaining() or 0.001)
            piece = sock.recv(count - len(data))
        except OSError as error:
            raise ConnectorError(f"the handshake ended early: {error.strerror or error}") from error
        if not piece:
            raise ConnectorError("the handshake ended early: the other side closed the connection.")
        data += piece
    return data


def check_kind(message: Message, kind: str, name: str) -> None:
    """HandshakeRefused unless an FFN rank begins an agreed data connection as connector `name` does, with `kind`."""
    if message.get("say") != kind:
        raise HandshakeRefused(
            f"this attention rank uses connector {name!r}, its FFN rank another one, which begins with "
            f"{quoted(message.get('say'))}: name the same connector on both roles."
        )


def text(message: Message, key: str) -> str:
    """A string of a message; FrameError when it is missing, something else, or cannot be encoded."""
    value = message.get(key)
    if not isinstance(value, str) or len(value) > _MOST_TEXT or not _encodes(value):
        raise FrameError(f"a handshake message needs a string {key!r}, found {quoted(value)}.")
    return value


def _encodes(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:  # JSON can spell half of a surrogate pair, which is no character
        return False
    return True


def number(message: Message, key: str) -> int:
    """A whole number of a message; FrameError when it is missing, something else, or beyond all ranks."""
    value = message.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or abs(value) > _MOST_NUMBER:
        raise FrameError(f"a handshake message needs a whole number {key!r}, found {quoted(value)}.")
    return value


def proof_of(secret: str | None, label: str, attention_nonce: str, ffn_nonce: str, token: str) -> str:
    """HMAC-SHA256 over both nonces, the token and a label; without a secret it only ties them together."""
    # As a list of JSON strings no choice of one part can make two different lists look alike.
    parts = json.dumps([label, attention_nonce, ffn_nonce, token])
    return hmac.new((secret or "").encode(), parts.encode(), "sha256").hexdigest()


def hello_of(identity: Identity, nonce: str, token: str = "", proof: str = "") -> dict[str, object]:
    """The first message of either side."""
    return {
        "say": "hello",
        "role": identity.layout.role,
        "rank": identity.layout.rank,
        "nonce": nonce,
        "token": token,
        "secured": identity.secret is not None,
        "proof": proof,
        "facts": identity.facts.to_wire(),
    }


def greet_ffn(sock: socket.socket, me: Identity, peer: int, deadline: Deadline) -> Session:
    """The attention side of the handshake with FFN rank `peer`.

    Raises HandshakeRefused when the sides do not fit, ConnectorError when the other end does not speak in
    time.
    """
    nonce, token = secrets.token_hex(16), secrets.token_hex(16)
    send_message(sock, hello_of(me, nonce, token), deadline)
    hello = _hello(recv_message(sock, deadline), "ffn")
    theirs = text(hello, "nonce")
    reason = _mismatch(me, hello, me.layout.rank, number(hello, "rank"))
    if number(hello, "rank") != peer:
        reason = f"attention rank {me.layout.rank} expected FFN rank {peer}, found rank {number(hello, 'rank')}."
    if reason is None:
        expected = proof_of(me.secret, "ffn", nonce, theirs, token)
        if not hmac.compare_digest(expected.encode(), text(hello, "proof").encode()):
            reason = wrong_secret(me.layout.rank, peer)
    if reason is not None:
        send_message(sock, {"say": "refuse", "reason": reason}, deadline)
        raise HandshakeRefused(reason)
    proof = proof_of(me.secret, "attention", nonce, theirs, token)
    send_message(sock, {"say": "proof", "proof": proof}, deadline)
    verdict = recv_message(sock, deadline)
    if verdict.get("accepted") is not True:
        refused = HandshakeRefused(one_line(text(verdict, "reason")))
        refused.final = verdict.get("final") is not False
        raise refused
    return Session(peer, token, proof_of(me.secret, "data", nonce, theirs, token))


def answer_attention(
    sock: socket.socket, me: Identity, hello: Message, deadline: Deadline
) -> tuple[Session, str | None]:
    """The FFN side up to the verdict: the session and why it is to be refused, None when it is not."""
    hello = _hello(hello, "attention")
    rank, theirs, token = number(hello, "rank"), text(hello, "nonce"), text(hello, "token")
    nonce = secrets.token_hex(16)
    proof = proof_of(me.secret, "ffn", theirs, nonce, token)
    send_message(sock, hello_of(me, nonce, token, proof), deadline)
    reply = recv_message(sock, deadline)
    reason = _mismatch(me, hello, rank, me.layout.rank)
    if reason is None and rank not in me.layout.peers:
        reason = f"FFN rank {me.layout.rank} serves attention ranks {list(me.layout.peers)}, found rank {rank}."
    if reason is None and reply.get("say") == "refuse":
        reason = one_line(text(reply, "reason"))
    if reason is None:
        expected = proof_of(me.secret, "attention", theirs, nonce, token)
        if not hmac.compare_digest(expected.encode(), text(reply, "proof").encode()):
            reason = wrong_secret(rank, me.layout.rank)
    return Session(rank, token, proof_of(me.secret, "data", theirs, nonce, token)), reason


def _hello(message: Message, role: Role) -> Message:
    if message.get("say") != "hello" or message.get("role") != role:
        raise FrameError(f"a handshake begins with the hello of role {role}, found {quoted(message.get('say'))}.")
    return message


def _mismatch(me: Identity, hello: Message, attention: int, ffn: int) -> str | None:
    ours, theirs = me.secret is not None, hello.get("secured") is True
    mine_first = me.layout.role == "attention"
    reason = one_sided_secret(*((ours, theirs) if mine_first else (theirs, ours)), attention, ffn)
    if reason is not None:
        return reason
    try:
        facts = Facts.from_wire(hello.get("facts"))
    except HandshakeRefused as refused:  # another protocol: its other facts cannot be read
        return refused.message
    pair = (me.facts, facts) if mine_first else (facts, me.facts)
    return disagreement(*pair, attention, ffn)
