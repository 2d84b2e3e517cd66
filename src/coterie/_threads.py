"""Run work in several threads.

Work is split into parts that do not depend on the number of threads, and results are combined in the order of the
parts, so that results do not depend on the number of threads.
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
    """Return the number of threads for ``n_jobs``.

    None is ``OMP_NUM_THREADS`` if set, and one thread for each core that this process may use otherwise. joblib sets
    ``OMP_NUM_THREADS`` in its processes, so that there are no more threads than cores. Negative numbers are relative to
    the number of cores, as in scikit-learn: -1 is all cores.
    """
    if n_jobs is None:
        said = os.environ.get("OMP_NUM_THREADS", "")
        return int(said) if said.isdigit() and int(said) > 0 else _cores()
    if type(n_jobs) is int and n_jobs > 0:
        return n_jobs  # counting the cores takes a tenth of a second the first time
    count = integer("n_jobs", n_jobs, least=-_cores())
    if count == 0:
        raise ParameterError("n_jobs=0: at least one thread must work; None or -1 is one for each core")
    return count if count > 0 else _cores() + 1 + count


#: Number of imported modules at the last search for threading libraries, and the libraries found.
_found: tuple[int, Any] = (0, None)


@contextmanager
def one_thread(user_api: str | None = "blas") -> Iterator[None]:
    """Limit BLAS to one thread within the context or the decorated function; with ``None``, OpenMP, too.

    In thousands of small factorisations, the threads of BLAS would spend their time waiting for each other: 40 times
    the work. Searching for the libraries takes milliseconds, as long as a small fit, so the search is only repeated
    after modules were imported.
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
    """Return ``[work(part) for part in parts]``, computed in several threads; raise the first error.

    After an error or an interruption, parts that have not begun are skipped, and `stop` is set, which long work can
    check in order to end early. Threads only help work that releases the GIL: compiled kernels, and NumPy on large
    arrays.
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
            stop.set()  # here, because the loop below may still wait for the results of earlier parts
            raise

    try:
        return list(pool.map(one, parts))
    except BaseException:
        stop.set()
        if errors:
            raise errors[0] from None  # the first error, not an error of work that was stopped because of it
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def _cores() -> int:
    """Return the number of cores that this process may use, within the limits of containers and CPU masks."""
    from joblib import cpu_count  # not above: most commands do not need joblib

    return int(cpu_count())
