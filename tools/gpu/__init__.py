"""Parity and speed on a host with CUDA devices: every script is one command that prints one short table."""
