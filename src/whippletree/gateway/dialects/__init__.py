"""The wire protocols by which harnesses reach the gateway: one file each."""
