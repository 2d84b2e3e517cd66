"""Compositions around a method: a learned graph, trimmed means, peer sampling."""
