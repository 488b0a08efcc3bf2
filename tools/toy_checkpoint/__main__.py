"""Writes one toy checkpoint.

python -m tools.toy_checkpoint FAMILY FOLDER [--seed N] [--layers N] [--shards N]
"""

import argparse
from pathlib import Path

from tools.options import positive
from tools.toy_checkpoint import FAMILIES, make

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("family", choices=sorted(FAMILIES))
parser.add_argument("folder", type=Path)
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--layers", type=positive, default=4)
parser.add_argument("--shards", type=positive, default=1)
options = parser.parse_args()
if (file := next((each for each in (options.folder, *options.folder.parents) if each.is_file()), None)) is not None:
    parser.error(f"expected a folder to write into, found a file: {file}")
print(make(options.family, options.folder, seed=options.seed, layers=options.layers, shards=options.shards))
