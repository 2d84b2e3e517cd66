from .graph_rules import check_graph_rule
from .losses import check_loss
from .methods import check_method
from .problems import hard_problem
from .transports import check_transport

__all__ = ["check_graph_rule", "check_loss", "check_method", "check_transport", "hard_problem"]
