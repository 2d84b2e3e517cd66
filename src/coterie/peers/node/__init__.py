"""One agent as a program: its messages, its state on disk, its health, and how it starts and ends."""
