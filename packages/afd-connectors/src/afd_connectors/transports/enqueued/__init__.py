"""What device transports have in common whose calls only enqueue work; steps are announced on a CPU channel."""
