"""An agent's own rows and models: reading, encoding, training alone, and scoring."""
