"""What arrives from a peer, and what of it is let in."""
