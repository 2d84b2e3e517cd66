"""One agent as a program: its letters, its state on disk, its health, and how it starts and ends."""
