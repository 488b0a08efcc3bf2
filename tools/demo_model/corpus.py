"""The text the demo model learns, so that the recipe names it exactly and a reader can check it."""

import hashlib
from pydoc_data.topics import topics

# Chosen for prose, and so few that a small model has read each of them some forty times when training ends.
NAMES = (
    "assignment",
    "calls",
    "compound",
    "execmodel",
    "objects",
    "raise",
)

# Typographic characters take three bytes each; plain ones keep every token of a completion printable.
PLAIN = {
    0x2018: "'",
    0x2019: "'",
    0x201C: '"',
    0x201D: '"',
    0x2013: "-",
    0x2014: "-",
    0x2026: "...",
}


def documents() -> list[bytes]:
    """The chosen topics of this Python's language reference, one document each, as ASCII bytes."""
    return [topics[name].translate(PLAIN).encode("ascii", "ignore") for name in NAMES]


def digest() -> str:
    """SHA-256 of the text in hex; it differs between Python releases, because the reference does."""
    return hashlib.sha256(b"\0".join(documents())).hexdigest()
