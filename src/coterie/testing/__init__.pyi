from .contracts import check_graph_rule, check_loss, check_method, check_transport, hard_problem

__all__ = ["check_graph_rule", "check_loss", "check_method", "check_transport", "hard_problem"]
