"""The two losses: each a definition in plain PyTorch and a chunked version with its own backward."""
