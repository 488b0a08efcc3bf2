"""nvlink: device tensors between two processes of one host by one-sided stores into each other's memory, in graphs."""
