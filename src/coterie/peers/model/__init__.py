"""An agent's own rows and models: read, encoded, learned alone, measured."""
