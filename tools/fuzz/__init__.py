"""What tools/fuzz_connectors.py does to the port of an FFN rank."""
