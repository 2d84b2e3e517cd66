from .agent_data import AgentData

__all__ = ["AgentData"]
