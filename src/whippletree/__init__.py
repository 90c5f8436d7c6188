"""Whippletree trains one agent policy through many harnesses, in balance."""

__version__ = "0.1.0"
