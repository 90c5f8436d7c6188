"""New harnesses from failures of old ones, and what is known of each."""
