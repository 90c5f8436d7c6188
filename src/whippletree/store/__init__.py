"""The run directory: SQLite for rollouts, calls, metrics and scores; checkpoints; resume."""
