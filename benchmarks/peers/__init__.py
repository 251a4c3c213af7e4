"""Other libraries at Heddle's workloads, each in an environment of its own: `make bench-peers`."""
