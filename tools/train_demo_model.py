"""Trains the model that `afd demo` runs and writes its folder, so that the weights can be made again.

    python tools/train_demo_model.py [--steps N] [--out FOLDER]

Prints the loss and the SHA-256 of the weights; needs torch, transformers and safetensors, which vLLM brings.
"""

import argparse
import time
from pathlib import Path

from demo_model.card import write_card
from demo_model.checkpoint import WEIGHTS, write_weights
from demo_model.shape import write_shape
from demo_model.training import Recipe, train
from options import positive

HOME = Path(__file__).resolve().parent.parent / "packages/afd-workers/src/afd_workers/demo/model"


def main() -> None:
    """Train, write the weights and everything beside them, print what was made."""
    parser = argparse.ArgumentParser(description="Train the model that `afd demo` runs.")
    parser.add_argument("--steps", type=positive, default=3600, help="training steps (default: %(default)s)")
    parser.add_argument("--out", type=Path, default=HOME, help="folder to write (default: the committed one)")
    options = parser.parse_args()
    recipe = Recipe(steps=options.steps)
    options.out.mkdir(parents=True, exist_ok=True)
    begun = time.monotonic()
    model, loss = train(recipe)
    sha = write_weights(model.state_dict(), options.out)
    write_shape(options.out)
    write_card(options.out, recipe, loss, sha)
    print(f"loss {loss:.3f} after {time.monotonic() - begun:.0f} s")
    print(f"sha256 {sha}  {options.out / WEIGHTS}")


if __name__ == "__main__":
    main()
