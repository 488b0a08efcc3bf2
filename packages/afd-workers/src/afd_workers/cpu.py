"""The two role workers on vLLM's CPU platform; vLLM loads them by name."""

from vllm.v1.worker.cpu_worker import CPUWorker

from afd_workers.attention import AttentionRole
from afd_workers.ffn import FFNRole


class AttentionWorker(AttentionRole, CPUWorker):
    """Attention on CPU."""


class FFNWorker(FFNRole, CPUWorker):
    """FFN on CPU."""
