"""Soft errors on the simulated card: bits of its memories and registers flipped while it works, and what came of it."""
