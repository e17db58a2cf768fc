"""What people see: snapshots of jobs, and the stack, as tables, live displays, plots and plain lines."""
