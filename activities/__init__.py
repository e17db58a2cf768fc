"""Durable units of work: thin, idempotent, and each safe to kill, repeat or run twice at once."""
