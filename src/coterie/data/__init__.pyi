from .agent_data import AgentData
from .flipping import flip_labels
from .sources import Source

__all__ = ["AgentData", "Source", "flip_labels"]
