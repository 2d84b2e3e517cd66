"""Jacobi steps with one neighbour at a time (DJAM)."""
