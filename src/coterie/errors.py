"""Everything coterie refuses, and why. One tree, so that one ``except`` catches what you mean to catch.

::

    CoterieError
     ├── InputError (ValueError)        something given to coterie is not what it must be
     │    ├── DataError                 rows, labels, agent ids, files
     │    │    ├── MissingDataError     a real dataset is not on this machine
     │    │    └── SignatureError       not signed by the one who had to
     │    ├── GraphError                weights, edges
     │    └── ParameterError            a number or a name out of its range
     ├── MismatchError (TypeError)      two good things that do not go together (a method and a loss)
     ├── DeclarationError (TypeError)   your own loss, method or rule lacks a part, or has an unknown one
     ├── CapacityError (RuntimeError)   a buffer too small for the messages of a method
     ├── CompileError (RuntimeError)    a method of a rule that compiled code cannot run
     ├── ConvergenceError (RuntimeError) an exact solver did not reach its tolerance
     ├── StudyError (RuntimeError)      some pieces of a study have failed; the others are in its ``study``
     ├── ClusterError (RuntimeError)    a cluster cannot be reached, or lost what cannot be replaced
     ├── BudgetError (RuntimeError)     a privacy budget is spent
     ├── LedgerError (RuntimeError)     a privacy ledger is damaged, missing or in use
     ├── FileError (OSError)            a file cannot be read or written
     ├── IdentityError (RuntimeError)   a peer's or a group's own files are damaged, missing or open to others
     │    └── RemovedError              a peer is no longer on its group's list of members
     ├── StateError (RuntimeError)      what a peer keeps across restarts is damaged, or another peer's
     ├── ContractError (AssertionError) a loss or a method broke a promise checked by coterie.testing
     ├── NotFittedError (ValueError, AttributeError) a model is used before it is fitted
     └── MissingExtra (ImportError)     an optional dependency is not installed

An error says what was found, what was expected, and what to do about it.
"""

from __future__ import annotations

import sys


class CoterieError(Exception):
    """Root of the tree."""


class InputError(CoterieError, ValueError):
    """Something given to coterie is not what it must be."""


class DataError(InputError):
    """Rows, labels or agent ids are not what they must be."""


class MissingDataError(DataError):
    """A real dataset is not on this machine; the message says how to get it."""


class SignatureError(DataError):
    """Something is not signed by the one who had to sign it."""


class GraphError(InputError):
    """Weights or edges are not what they must be."""


class ParameterError(InputError):
    """A number or a name is out of its range."""


class MismatchError(CoterieError, TypeError):
    """Two good things that do not go together, such as a method and a loss."""


class DeclarationError(CoterieError, TypeError):
    """A loss, a method or a rule of your own lacks a part that it must have, or has one that is not known."""


class CapacityError(CoterieError, RuntimeError):
    """A buffer is too small for the messages of a method."""


class CompileError(CoterieError, RuntimeError):
    """Numba cannot compile a method of a rule; its own error is the cause of this one."""


class ConvergenceError(CoterieError, RuntimeError):
    """An exact solver did not reach its tolerance."""


class StudyError(CoterieError, RuntimeError):
    """Some pieces of a study have failed; what the others found is in ``study``."""

    study: object = None


class ClusterError(CoterieError, RuntimeError):
    """A cluster cannot be reached, or lost what cannot be replaced."""


class ContractError(CoterieError, AssertionError):
    """A loss or a method broke a promise that :mod:`coterie.testing` checks."""


class MissingExtra(CoterieError, ImportError):  # noqa: N818 - it names what is missing
    """An optional dependency is not installed."""


class NotFittedError(CoterieError, ValueError, AttributeError):
    """A model is used before it is fitted; scikit-learn's error of that name, too, where scikit-learn is loaded."""

    @classmethod
    def of(cls, estimator: object) -> Exception:
        """The error for an estimator."""
        message = (
            f"This {type(estimator).__name__} instance is not fitted yet. "
            "Call 'fit' with appropriate arguments before using this estimator."
        )
        theirs = getattr(sys.modules.get("sklearn.exceptions"), "NotFittedError", None)
        if theirs is None:
            return NotFittedError(message)
        both = type("NotFittedError", (cls, theirs), {"__doc__": cls.__doc__, "__module__": cls.__module__})
        error: Exception = both(message)
        return error


class ExtrapolationWarning(UserWarning):
    """Rows to predict lie outside the range of their agents' own rows."""


class BudgetError(CoterieError, RuntimeError):
    """A privacy budget is spent."""


class LedgerError(CoterieError, RuntimeError):
    """A privacy ledger is damaged, missing or in use."""


class FileError(CoterieError, OSError):
    """A file cannot be read or written; the message names it."""

    def __str__(self) -> str:
        return str(self.strerror or super().__str__())


class IdentityError(CoterieError, RuntimeError):
    """The own files of a peer or a group are damaged, missing, open to others, or there already."""


class RemovedError(IdentityError):
    """A peer is no longer on its group's list of members: to start it again does not help."""


class StateError(CoterieError, RuntimeError):
    """What a peer keeps across restarts is damaged, or that of another peer or run."""


def about(error: CoterieError, what: str) -> CoterieError:
    """The same error, saying first which of many things it is about."""
    return type(error)(f"{what}: {error}") if what else error
