"""Which task under which harness, and when."""
