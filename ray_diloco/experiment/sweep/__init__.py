"""Many trials, one table: launching, recording, resuming and reading sweeps."""
