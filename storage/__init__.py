"""What outlives a process: the object store and the trajectory log, each the only owner of its client."""
