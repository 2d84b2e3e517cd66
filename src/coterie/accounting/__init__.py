"""Accountants of differential privacy, and plans of noise. No data, no compiled code."""
