"""The format of packets, and the checks that received packets must pass."""
