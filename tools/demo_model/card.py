"""Writes the demo model's README, so that the weights say what they are, how made and from whose text."""

import platform
from importlib.metadata import version
from pathlib import Path

from demo_model.checkpoint import WEIGHTS
from demo_model.corpus import NAMES, digest, documents
from demo_model.shape import CONFIG
from demo_model.training import Recipe

TEXT = """\
# The demo model

A byte-level DeepSeek-V2 of {megabytes:.1f} MB in bfloat16 that `afd demo` runs. It has all that AFD cuts:
{layers} layers, latent attention in all of them, a dense feed-forward in the first, 8 routed experts and a
shared one in the others. It is good for nothing else: it recites and garbles the text that it learned, a
token is a byte, and it saw at most {window} bytes at a time.

| | |
|---|---|
| made by | `tools/train_demo_model.py`: {steps} steps of {tokens} bytes, seed {seed}, float32, one thread |
| made with | Python {python}, torch {torch}, transformers {transformers}, {machine} |
| final training loss | {loss:.3f} nats per byte |
| SHA-256 of `{weights}` | `{sha}` |
| SHA-256 of the text | `{text}` |

With vLLM 0.30.0, eager on a CPU, give `--compilation-config '{{"custom_ops": ["-rotary_embedding"]}}'`.
The CPU kernel that this replaces by vLLM's own torch code rotates the queries of latent attention by wrong
positions, and the completions become noise.

The text is {size} bytes of `pydoc_data.topics`, which ships with Python: the topics {names}.
Another Python release has another text, and another build of torch or kind of CPU rounds differently: the
script then makes a model as good as this one, but not the same bytes.

The text is from the Python documentation, copyright Python Software Foundation, used under the
[PSF License Version 2](https://docs.python.org/3/license.html). The weights are under the licence of this
repository.
"""


def write_card(folder: Path, recipe: Recipe, loss: float, sha: str) -> None:
    """Write README.md into `folder`; `loss` in nats per byte, `sha` of the weights file."""
    card = TEXT.format(
        megabytes=(folder / WEIGHTS).stat().st_size / 1e6,
        layers=CONFIG["num_hidden_layers"],
        window=recipe.long_window,
        steps=recipe.steps,
        tokens=recipe.step_tokens,
        seed=recipe.seed,
        python=platform.python_version(),
        torch=version("torch"),
        transformers=version("transformers"),
        machine=platform.machine(),
        loss=loss,
        weights=WEIGHTS,
        sha=sha,
        text=digest(),
        size=sum(len(text) for text in documents()),
        names=", ".join(f"`{name}`" for name in NAMES),
    )
    (folder / "README.md").write_text(card, encoding="utf-8")
