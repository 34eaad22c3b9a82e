"""The training model as its own rollout engine, through transformers."""
