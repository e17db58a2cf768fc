"""Jobs seen from outside: their files, how they are doing, why they failed, and what they leave behind."""
