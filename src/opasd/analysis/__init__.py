"""What a run's numbers and texts say: pure functions on plain rows."""
