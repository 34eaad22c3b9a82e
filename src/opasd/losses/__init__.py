"""The losses: tensors in, tensors out. They know no configuration and no model.

inputs              what a loss reads: queries and keys, output heads, a role's forward
divergence          one table of the divergences, for all implementations
projection          how the teacher's target treats its attention on the solution
token, attention    the two losses: their definition and the choice of an implementation
token_chunked,      the same numbers a few tokens or steps at a time in plain PyTorch
attention_chunked
fused/              the same numbers in Triton kernels for a GPU
objective           the weighted sum of both losses over a minibatch
numerics            at least float32, under autocast too; gradients that are ready before the backward pass
"""
