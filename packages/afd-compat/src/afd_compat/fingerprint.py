"""Fingerprints of functions by their cleaned text, which every Python sees alike, unlike `ast.dump`."""

from __future__ import annotations

import ast
import hashlib
import io
import tokenize
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Iterator

Kind = Literal["sig", "body"]
_Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
_Span = tuple[tuple[int, int], tuple[int, int]]


def fingerprint(text: str, qualname: str, kind: Kind) -> str | None:
    """Hash ("sig:…" or "body:…") of the function or class `qualname` in a module's `text`, None if not there.

    A name defined several times (overloads, branches) counts with all its definitions. Raises SyntaxError
    for text that this Python cannot parse.
    """
    cleaned = cleaned_source(text, qualname, kind)
    return None if cleaned is None else digest(cleaned, kind)


def digest(cleaned: str, kind: Kind) -> str:
    """The fingerprint of text that `cleaned_source` gave."""
    return f"{kind}:{hashlib.sha256(cleaned.encode()).hexdigest()[:16]}"


def cleaned_source(text: str, qualname: str, kind: Kind, parsed: ast.Module | None = None) -> str | None:
    """The text that is hashed: no comments, docstrings, blank lines, trailing space or outer indentation.

    `parsed` is the text's own tree, for callers that ask for several names of one long text.
    """
    lines = io.StringIO(text).readlines()  # `str.splitlines` also splits at form feeds, `ast` does not
    found = list(_definitions(parsed or ast.parse(text), qualname.split(".")))
    return "\n".join(_clean(lines, node, kind) for node in found) if found else None


def _definitions(scope: ast.AST, names: list[str]) -> Iterator[_Definition]:
    """Every definition of the dotted name, also inside `if` and `try` but not inside functions."""
    for node in ast.iter_child_nodes(scope):
        if isinstance(node, _Definition):
            if node.name == names[0]:
                if len(names) == 1:
                    yield node
                elif isinstance(node, ast.ClassDef):
                    yield from _definitions(node, names[1:])
        elif isinstance(node, (ast.stmt, ast.excepthandler, ast.match_case)):
            yield from _definitions(node, names)


def _clean(lines: list[str], node: _Definition, kind: Kind) -> str:
    first = _start(node)
    _, end = _span(lines, node)
    if kind == "sig":
        top = _start(node.body[0])
        end = (top, _column(lines, top, node.body[0].col_offset))
    spans = [_span(lines, docstring) for docstring in _docstrings(node)]
    spans += _comments("".join(lines[first - 1 : end[0]]), first)
    kept = [line.rstrip("\n") for line in lines[first - 1 : end[0]]]
    kept[-1] = kept[-1][: end[1]]
    _cut(kept, first, [span for span in spans if span[0] < end])
    indent = " " * node.col_offset
    return "\n".join(line.removeprefix(indent).rstrip() for line in kept if line.strip())


def _start(node: ast.stmt) -> int:
    """The first line of a statement, decorators included."""
    decorators = node.decorator_list if isinstance(node, _Definition) else []
    return min([node.lineno, *(decorator.lineno for decorator in decorators)])


def _docstrings(node: _Definition) -> Iterator[ast.stmt]:
    for inner in ast.walk(node):
        if isinstance(inner, _Definition) and ast.get_docstring(inner, clean=False) is not None:
            yield inner.body[0]


def _comments(text: str, first: int) -> list[_Span]:
    """Where the comments of `text` are, which starts at line `first` and may end inside a block."""
    spans: list[_Span] = []
    try:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.COMMENT:
                (top, left), (bottom, right) = token.start, token.end
                spans.append(((top + first - 1, left), (bottom + first - 1, right)))
    except (tokenize.TokenError, IndentationError):
        return spans  # a signature ends before its block does; every comment up to there has been seen
    return spans


def _cut(lines: list[str], first: int, spans: list[_Span]) -> None:
    """Empty the given spans of `lines`, of which the first has number `first`; the number of lines stays."""
    for (top, left), (bottom, right) in sorted(spans, reverse=True):
        rest = lines[top - first][:left] + lines[bottom - first][right:]
        lines[top - first : bottom - first + 1] = [rest, *[""] * (bottom - top)]


def _span(lines: list[str], node: ast.stmt) -> _Span:
    bottom = node.end_lineno or node.lineno
    start = (node.lineno, _column(lines, node.lineno, node.col_offset))
    return start, (bottom, _column(lines, bottom, node.end_col_offset or 0))


def _column(lines: list[str], number: int, offset: int) -> int:
    """`ast` counts columns in UTF-8 bytes, `tokenize` and slices in characters."""
    return len(lines[number - 1].encode()[:offset].decode())
