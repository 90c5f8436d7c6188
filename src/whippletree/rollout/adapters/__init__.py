"""Real harnesses: one file each."""
