"""Views of a running peer: the page of `coterie watch`, metrics and status."""
