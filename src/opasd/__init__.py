"""On-policy attention self-distillation: a model teaches itself what to predict and where to look."""
