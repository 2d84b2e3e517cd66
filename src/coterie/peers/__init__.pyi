from .group.charter import Charter, make_charter
from .node.node import Node
from .group.roster import Roster

__all__ = ["Charter", "Node", "Roster", "make_charter"]
