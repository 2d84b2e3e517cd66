"""Examples grouped by agent, read from tables and files."""

from .agent_data import AgentData

__all__ = ["AgentData"]
