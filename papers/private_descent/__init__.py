"""Coordinate descent, with and without privacy (CD, DP)."""
