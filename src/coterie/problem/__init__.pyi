from .problem import Problem

__all__ = ["Problem"]
