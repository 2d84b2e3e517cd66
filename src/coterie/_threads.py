"""How many threads work at once, and work that is divided among them.

Work is cut into the same parts whatever the number of threads, and results are put together in the order of the parts:
so a result never depends on how many there were.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Event
from typing import Any, TypeVar

from ._checks import integer
from .errors import ParameterError

Part = TypeVar("Part")
Result = TypeVar("Result")


def threads(n_jobs: int | None) -> int:
    """How many threads ``n_jobs`` stands for.

    None is one for each core that this process may use, or what ``OMP_NUM_THREADS`` says; so work that is spread over
    processes by joblib, which sets it, does not ask for more threads than there are cores. Negative numbers count from
    the cores, as in scikit-learn: -1 is all of them.
    """
    if n_jobs is None:
        said = os.environ.get("OMP_NUM_THREADS", "")
        return int(said) if said.isdigit() and int(said) > 0 else _cores()
    if type(n_jobs) is int and n_jobs > 0:
        return n_jobs  # without a look at the machine, which takes a tenth of a second the first time
    count = integer("n_jobs", n_jobs, least=-_cores())
    if count == 0:
        raise ParameterError("n_jobs=0: at least one thread must work; None or -1 is one for each core")
    return count if count > 0 else _cores() + 1 + count


#: How many modules there were when libraries of threads were looked for, and what was found.
_found: tuple[int, Any] = (0, None)


@contextmanager
def one_thread(user_api: str | None = "blas") -> Iterator[None]:
    """A BLAS works in one thread, for as long as the context or the decorated function lasts; None: OpenMP, too.

    In thousands of small factorisations its threads would spend their time waiting for each other, 40 times the work.
    To look for the libraries takes milliseconds, as long as a small fit: so once, until modules bring others.
    """
    global _found
    from threadpoolctl import ThreadpoolController

    if _found[0] != len(sys.modules):
        _found = len(sys.modules), ThreadpoolController()
    with _found[1].limit(limits=1, user_api=user_api):
        yield


def in_threads(
    work: Callable[[Part], Result], parts: Iterable[Part], n_jobs: int | None = None, stop: Event | None = None
) -> list[Result]:
    """``[work(part) for part in parts]``, several at a time; the first error is raised, and what has not begun is not.

    `stop` is set by an error, or an interruption: long work can look at it, and need not be waited for.
    Threads gain where the work leaves Python: compiled kernels, and NumPy on large arrays.
    """
    parts = list(parts)
    count = min(threads(n_jobs), len(parts))
    if count <= 1:
        return [work(part) for part in parts]
    pool: Any = ThreadPoolExecutor(count, thread_name_prefix="coterie")
    stop, errors = stop or Event(), list[BaseException]()

    def one(part: Part) -> Result:
        try:
            return work(part)
        except BaseException as error:
            errors.append(error)
            stop.set()  # here, not where results are waited for: those of earlier parts may be long in coming
            raise

    try:
        return list(pool.map(one, parts))
    except BaseException:
        stop.set()
        if errors:
            raise errors[0] from None  # the first, and not that of work that ended because of it
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def _cores() -> int:
    """How many cores this process may use: of those the machine has, those that a container or a mask leaves."""
    from joblib import cpu_count  # not above: most commands need none of it

    return int(cpu_count())
