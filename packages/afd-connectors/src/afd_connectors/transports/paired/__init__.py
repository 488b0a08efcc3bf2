"""What transports with one connection per pair of ranks share: both ports, who is connected, what is open."""
