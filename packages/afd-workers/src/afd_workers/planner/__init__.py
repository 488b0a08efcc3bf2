"""What a deployment gives, by arithmetic: tokens per second, time per token, KV room, and what holds it back."""
