"""One module per module of vLLM that AFD changes or relies on; each holds declarations only."""
