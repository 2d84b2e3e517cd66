"""Pooling by several threads: whatever their number, every number that comes out is the same, to the last bit."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from populations import drawn

import coterie as ct
from coterie.core import batches
from coterie.core.compile import PLAIN
from coterie.pooling import blocks, fitted

N = 120
JOBS = (3, None) if PLAIN else (2, 3, 7, None)


@pytest.fixture
def small_batches(monkeypatch):
    """Many batches of few agents, and predictions in many parts."""
    monkeypatch.setattr(batches, "MAX_BATCH_ENTRIES", 200)
    monkeypatch.setattr(fitted, "MAX_PREDICTED_NUMBERS", 500)


def rows(family):
    rng = np.random.default_rng(1)
    sizes = rng.integers(0, 12, N)
    X, y, codes, _ = drawn(rng, N, 0, 5, family, sizes=sizes)
    shuffle = rng.permutation(len(y))
    return X[shuffle, :-1], y[shuffle], codes[shuffle]


def learned(family, n_jobs, **settings):
    X, y, codes = rows(family)
    kind = ct.CollaborativeClassifier if family == "logistic" else ct.CollaborativeRegressor
    model = kind(n_jobs=n_jobs, members=range(N), **settings).fit(X, y, agents=codes)
    said = model.predict_proba(X, codes) if family == "logistic" else np.array(model.predict(X, codes, return_std=True))
    model.partial_fit(X[:20], y[:20], agents=codes[:20])
    return model.common_coef_, model.coef_, model.intercept_, model.log_evidence_, model.personal_variance_, said


@pytest.mark.usefixtures("small_batches")
@pytest.mark.parametrize(
    ("family", "settings"),
    [
        pytest.param("logistic", {}, id="classes", marks=pytest.mark.slow),
        pytest.param("squared", {"loss": "auto", "design": "additive"}, id="numbers", marks=pytest.mark.slow),
        pytest.param("poisson", {"loss": "poisson", "deviations": "diagonal"}, id="counts"),
    ],
)
def test_any_number_of_threads_learns_the_same(family, settings, monkeypatch):
    monkeypatch.setattr(fitted, "MAX_SAMPLE_AGENTS", 70)  # so that not everybody is in the sample
    one = learned(family, 1, **settings)
    for n_jobs in JOBS:
        for expected, found in zip(one, learned(family, n_jobs, **settings), strict=True):
            np.testing.assert_array_equal(found, expected)


@pytest.mark.slow
@pytest.mark.usefixtures("small_batches")
def test_threads_do_the_work_they_are_asked_for(monkeypatch):
    """A promise that nothing depends on the threads is easy to keep if there is only one."""
    workers = set()
    posterior, look = fitted.posterior, blocks.AgentBatch.block
    monkeypatch.setattr(fitted, "MAX_SAMPLE_AGENTS", 70)

    def seen(batch, population):
        workers.add(threading.current_thread().name)
        return posterior(batch, population)

    def looked(self, *given):
        workers.add(threading.current_thread().name)
        return look(self, *given)

    monkeypatch.setattr(fitted, "posterior", seen)
    learned("logistic", 3)
    assert any(name.startswith("coterie") for name in workers)
    monkeypatch.setattr(fitted, "posterior", posterior)
    monkeypatch.setattr(blocks.AgentBatch, "block", looked)
    workers.clear()
    learned("logistic", 3)
    assert any(name.startswith("coterie") for name in workers)


@pytest.mark.slow
def test_progress_is_told_by_whoever_asked(monkeypatch):
    monkeypatch.setattr(fitted, "MAX_SAMPLE_AGENTS", 70)
    X, y, codes = rows("logistic")
    told, counts = set(), []
    for n_jobs in (1, 3):
        seen = []

        def progress(done, seen=seen):
            told.add(threading.current_thread())
            seen.append(done)

        ct.CollaborativeClassifier(n_jobs=n_jobs).fit(X, y, agents=codes, progress=progress)
        counts.append(seen)
    assert told == {threading.main_thread()}
    assert counts[0] == counts[1] == list(range(1, len(counts[0]) + 1))


@pytest.mark.slow
def test_rows_are_kept_once_for_all_classes():
    X, _, codes = rows("squared")
    model = ct.CollaborativeClassifier().fit(X, np.arange(len(X)) % 3, agents=codes)
    first, second, third = (part.grouped for part in model._models.parts)
    assert first.X is second.X is third.X
    assert not np.shares_memory(first.X, X)


def test_threads_are_no_part_of_a_model(tmp_path):
    X, y, codes = rows("squared")
    model = ct.CollaborativeRegressor(n_jobs=2).fit(X, y, agents=codes)
    assert model.get_params()["n_jobs"] == 2
    assert ct.load(ct.save(model, tmp_path / "model")).n_jobs is None
    assert "n_jobs" not in (tmp_path / "model" / "model.json").read_text()
