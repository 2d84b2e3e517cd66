from .agent_data import AgentData, flip_labels
from .sources import Source

__all__ = ["AgentData", "Source", "flip_labels"]
