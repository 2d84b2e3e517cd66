"""Engines: who wakes when, and when a letter arrives. The rules of a method are the same in all of them."""
