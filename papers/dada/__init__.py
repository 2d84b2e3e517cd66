"""Boosted personal models and learned graphs (DADA)."""
