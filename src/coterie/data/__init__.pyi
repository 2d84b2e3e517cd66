from .agent_data import AgentData
from .flipping import flip_labels
from .source import Source

__all__ = ["AgentData", "Source", "flip_labels"]
