"""What tools/bench_topologies.py does with each topology, and the line that it prints of it."""
