"""Distributed multi-task relationship learning (DMTRL)."""
