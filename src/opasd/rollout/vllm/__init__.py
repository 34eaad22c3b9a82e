"""vLLM as rollout engine: in the training process, or on servers."""
