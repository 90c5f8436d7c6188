"""Acting: one task under one harness, many at once."""
