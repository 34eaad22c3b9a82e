"""What a run needs before it is started: memory of a GPU by part, tokens and time of a step. Imports no torch."""
