"""Deterministic orchestration only: no clock, randomness, I/O or environment."""
