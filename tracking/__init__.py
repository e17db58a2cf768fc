"""Experiment trackers, each through its own library. Runs in child processes of CPU workers only."""
