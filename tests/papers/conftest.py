"""Quick runs of experiments, each once."""

from functools import cache

import pytest

from papers import find, reproduce


@pytest.fixture(scope="session")
def quick(tmp_path_factory):
    """The outcome of the quick run of an experiment, by its name; no test where its data are not there."""
    folder = tmp_path_factory.mktemp("reproduced")

    @cache
    def run(name):
        (experiment,) = find(name)
        if experiment.missing:
            pytest.skip(f"the real datasets are not here: {', '.join(experiment.missing)}")
        outcome = reproduce(experiment, folder, quick=True)
        assert outcome.figure.stat().st_size > 10_000
        assert outcome.claims or name.startswith("leaderboard")
        return outcome

    return run
