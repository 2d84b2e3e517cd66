from .agent_data import AgentData
from .source import Source

__all__ = ["AgentData", "Source"]
