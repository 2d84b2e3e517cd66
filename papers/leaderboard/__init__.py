"""All real datasets, all methods."""
