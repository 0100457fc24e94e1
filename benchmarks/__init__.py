"""Held-out suites for evaluate.py and the arithmetic of their tables.
Open it to add a suite."""
