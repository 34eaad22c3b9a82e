"""What a model's answers are worth."""
