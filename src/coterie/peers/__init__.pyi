from .agreement import Charter, Roster
from .node import Node

__all__ = ["Charter", "Node", "Roster"]
