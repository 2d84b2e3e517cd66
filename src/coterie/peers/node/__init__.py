"""One agent as a program: its messages, its state on disk, its health, and its start and end."""
