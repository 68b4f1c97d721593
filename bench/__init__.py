"""Measures what the gateway costs: the same engine asked directly and through it, in one run."""
