"""Contracts: what the parts of MARLaaS say to one another and store. Pure; imports nothing of ours."""
