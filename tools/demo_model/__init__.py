"""The demo model in parts: the text it learns, its shape and tokenizer, its training, its files."""
