"""A tokenizer of numbered words, so that random token ids survive the way through text and back."""

from __future__ import annotations

import json
from pathlib import Path


def write(folder: Path, vocabulary: int) -> None:
    """Adds the tokenizer to a model's folder: token n is the word "wn", words are parted by blanks."""
    words = {f"w{number}": number for number in range(vocabulary)}
    tokenizer: dict[str, object] = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": None,
        "decoder": None,
        "model": {"type": "WordLevel", "vocab": words, "unk_token": "w0"},
    }
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 1 << 20}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
