"""The exceptions of coterie, in one tree: every one derives from :class:`CoterieError`.

::

    CoterieError
     ├── InputError (ValueError)        an input is invalid
     │    ├── DataError                 invalid rows, labels, agent ids or files
     │    │    ├── MissingDataError     a real dataset is not on this machine
     │    │    └── SignatureError       the expected signature is missing or wrong
     │    ├── GraphError                invalid weights or edges
     │    └── ParameterError            an invalid number or name
     ├── MismatchError (TypeError)      two valid inputs cannot be combined, such as a method and a loss
     ├── DeclarationError (TypeError)   a user-defined loss, method or rule lacks a part, or has an unknown part
     ├── CapacityError (RuntimeError)   a buffer too small for the messages of a method
     ├── CompileError (RuntimeError)    Numba cannot compile a method of a rule
     ├── ConvergenceError (RuntimeError) an exact solver did not reach its tolerance
     ├── StudyError (RuntimeError)      some runs of a study failed; the attribute ``study`` holds the other results
     ├── ClusterError (RuntimeError)    a cluster cannot be reached, or has lost data that cannot be restored
     ├── BudgetError (RuntimeError)     a privacy budget is spent
     ├── LedgerError (RuntimeError)     a privacy ledger is damaged, missing or in use
     ├── FileError (OSError)            a file cannot be read or written
     ├── IdentityError (RuntimeError)   the identity files of a peer or group are damaged, missing or readable by others
     │    └── RemovedError              a peer is no longer on its group's roster
     ├── StateError (RuntimeError)      the saved state of a peer is damaged, or belongs to another peer
     ├── ContractError (AssertionError) a loss or a method fails a check of coterie.testing
     ├── NotFittedError (ValueError, AttributeError) a model is used before it is fitted
     └── MissingExtra (ImportError)     an optional dependency is not installed

Every message says what was found, what was expected, and what to do.
"""

from __future__ import annotations

import sys


class CoterieError(Exception):
    """Base class of all exceptions of coterie."""


class InputError(CoterieError, ValueError):
    """An input is invalid."""


class DataError(InputError):
    """Rows, labels, agent ids or files are invalid."""


class MissingDataError(DataError):
    """A real dataset is not on this machine; the message says how to download the files."""


class SignatureError(DataError):
    """The expected signature is missing or wrong."""


class GraphError(InputError):
    """Weights or edges are invalid."""


class ParameterError(InputError):
    """A number or a name is outside its allowed values."""


class MismatchError(CoterieError, TypeError):
    """Two valid inputs cannot be combined, such as a method and a loss."""


class DeclarationError(CoterieError, TypeError):
    """A user-defined loss, method or rule lacks a required part, or has an unknown part."""


class CapacityError(CoterieError, RuntimeError):
    """A buffer is too small for the messages of a method."""


class CompileError(CoterieError, RuntimeError):
    """Numba cannot compile a method of a rule; ``__cause__`` is Numba's own error."""


class ConvergenceError(CoterieError, RuntimeError):
    """An exact solver did not reach its tolerance."""


class StudyError(CoterieError, RuntimeError):
    """Some runs of a study failed; the attribute ``study`` holds the results of the other runs."""

    study: object = None


class ClusterError(CoterieError, RuntimeError):
    """A cluster cannot be reached, or has lost data that cannot be restored."""


class ContractError(CoterieError, AssertionError):
    """A loss or a method fails a check of :mod:`coterie.testing`."""


class MissingExtra(CoterieError, ImportError):  # noqa: N818 - it names what is missing
    """An optional dependency is not installed."""


class NotFittedError(CoterieError, ValueError, AttributeError):
    """A model is used before it is fitted.

    Where scikit-learn is loaded, the error is an instance of ``sklearn.exceptions.NotFittedError``, too.
    """

    @classmethod
    def of(cls, estimator: object) -> Exception:
        """Return the error for an estimator."""
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
    """Rows to predict lie outside the range of their agents' training rows."""


class BudgetError(CoterieError, RuntimeError):
    """A privacy budget is spent."""


class LedgerError(CoterieError, RuntimeError):
    """A privacy ledger is damaged, missing or in use."""


class FileError(CoterieError, OSError):
    """A file cannot be read or written; the message names it."""

    def __str__(self) -> str:
        return str(self.strerror or super().__str__())


class IdentityError(CoterieError, RuntimeError):
    """The identity files of a peer or a group are damaged, missing, readable by others, or exist already."""


class RemovedError(IdentityError):
    """A peer is no longer on its group's roster; starting the peer again does not help."""


class StateError(CoterieError, RuntimeError):
    """The state that a peer keeps across restarts is damaged, or belongs to another peer or run."""


def about(error: CoterieError, what: str) -> CoterieError:
    """Return a copy of `error` whose message begins with `what`, the thing that the error is about."""
    return type(error)(f"{what}: {error}") if what else error
