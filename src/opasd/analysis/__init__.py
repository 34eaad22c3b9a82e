"""Pure functions that turn the rows and texts of runs into numbers."""
