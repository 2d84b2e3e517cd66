"""Compositions around a method: learned graphs, robust aggregation, compression, attacks, peer sampling."""
