"""nccl-p2p: device tensors between two processes through NCCL, in graphs or outside, steered on a CPU channel."""
