"""Work in threads: results in order, errors told, and numbers of threads as scikit-learn counts them."""

import threading

import joblib
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from coterie._threads import in_threads, one_thread, threads
from coterie.errors import ParameterError


@pytest.mark.parametrize("n_jobs", [1, 2, 3, 7])
def test_results_come_in_the_order_of_the_parts(n_jobs):
    assert in_threads(lambda k: k * k, range(50), n_jobs) == [k * k for k in range(50)]


def test_parts_are_worked_on_at_once():
    together = threading.Barrier(3, timeout=30)  # nobody gets past it alone
    in_threads(lambda _: together.wait(), range(3), n_jobs=3)


def test_the_first_error_is_raised_and_the_rest_is_not_begun():
    seen = []

    def work(k):
        seen.append(k)
        if k == 0:
            raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        in_threads(work, range(1000), n_jobs=1)
    assert seen == [0]
    with pytest.raises(ValueError, match="no"):
        in_threads(work, range(1000), n_jobs=2)


def test_numbers_count_as_in_scikit_learn(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    cores = joblib.cpu_count()
    assert threads(5) == 5
    assert threads(-1) == threads(None) == cores
    assert threads(-cores) == 1
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert threads(None) == 3
    assert threads(-1) == cores


@pytest.mark.parametrize("n_jobs", [0, 1.5, "two", -10_000])
def test_other_numbers_are_refused(n_jobs):
    with pytest.raises(ParameterError, match="n_jobs"):
        threads(n_jobs)


def test_an_error_ends_long_work_that_began_before_it():
    stop = threading.Event()

    def work(part):
        if part == 0:
            assert stop.wait(30.0)
            raise KeyboardInterrupt
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        in_threads(work, range(2), 2, stop)


def test_libraries_work_in_one_thread_where_they_are_told_to():
    """A BLAS, or all that have threads; afterwards in as many as before."""
    import sklearn.ensemble._hist_gradient_boosting.binning  # noqa: F401, which brings an OpenMP

    def counts(*kinds):
        return {library["num_threads"] for library in threadpool_info() if library["user_api"] in kinds}

    @one_thread()
    def inside():
        return counts("blas"), counts("openmp")

    with threadpool_limits(2):
        assert inside() == inside() == ({1}, {2})
        with one_thread(None):
            assert counts("blas", "openmp") == {1}
        assert counts("blas", "openmp") == {2}
