"""The demo's model and prompts, and the client that compares two servers on them."""
