"""The pieces of benchmarks/scale.py; the benchmark itself is not run."""

import json

import numpy as np
import pytest

from benchmarks import scale


def result(step, agents, cpu=None, jobs=1, **more):
    found = {"step": step, "agents": agents, "jobs": jobs, "dtype": "float32"}
    return found | ({} if cpu is None else {"cpu": cpu, "wall": cpu / jobs, "peak": 100.0, "rows": agents / 10}) | more


@pytest.fixture
def results():
    found = scale.Results()
    for n in (1000, 10_000, 100_000):
        found.add(result("data", n, cpu=n / 1000))
        found.add(result("data", n, cpu=n / 1000, jobs=2))
    found.add(result("solve", 1000, cpu=1.0, suboptimality=1e-9))
    found.add(result("solve", 10_000, failed="not finished in 60 s"))
    found.add(result("solve", 100_000, failed="not tried"))
    return found


@pytest.mark.parametrize("exponent", [0.5, 1.0, 2.0])
def test_growth_of_a_known_law(exponent):
    sizes = [1e3, 1e4, 3e5]
    assert scale.growth(sizes, [7.0 * n**exponent for n in sizes]) == pytest.approx([exponent] * 2)


def test_growth_where_a_number_is_missing():
    assert scale.growth([1e3, 1e4, 1e5, 1e6], [1.0, 10.0, None, 5.0]) == [pytest.approx(1.0), None, None]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_rows_are_grouped_and_of_the_promised_sizes(dtype):
    n = scale.BLOCK + 10  # two blocks
    X, y, agents, models = scale.make_rows(n, dtype)
    sizes = np.bincount(agents)
    assert len(sizes) == n
    assert sizes.min() == scale.FEWEST
    assert sizes.max() == scale.MOST
    assert np.all(np.diff(agents) >= 0)
    assert X.shape == (sizes.sum(), scale.P)
    assert X.dtype == y.dtype == dtype
    assert X.flags.c_contiguous
    assert set(np.unique(y)) == {-1.0, 1.0}
    right = np.sign(np.einsum("rk,rk->r", X, models[agents])) == y
    for half in (agents < n // 2, agents >= scale.BLOCK):  # each block has labels of its own agents
        assert 0.9 < right[half].mean() < 0.99
    assert abs(X.mean()) < 0.01
    assert abs(X.std() - 1.0) < 0.01


def test_the_table_says_what_was_not_finished(results):
    told = {row[0]: row[1:] for row in scale.main_table(results, "cpu", 1)}
    assert told["`AgentData`"] == ["1.00", "10.0", "100", "1.00, 1.00"]
    assert told["`solve()`"] == ["1.00", "not finished in 60 s", "not tried", "-, -"]
    page = scale.markdown(results)
    assert "| not finished in 60 s | not tried | -, - |" in page
    assert "estimated, 1e-09 (1e3)" in page


def test_speed_up_is_a_ratio_of_wall_times(results):
    assert scale.speedup_table(results)[0] == ["`AgentData`", "1e3", "1.00", "0.50 (x2.00)"]


def test_a_figure_without_what_was_not_finished(results, tmp_path):
    scale.draw(results, tmp_path / "scale.png")
    assert (tmp_path / "scale.png").stat().st_size > 10_000


def test_an_interrupted_run_goes_on(tmp_path):
    path = tmp_path / "scale.json"
    scale.Results(path).add(result("data", 1000, cpu=2.0))
    again = scale.Results(path, resume=True)
    assert again.find("data", 1000, 1)["cpu"] == 2.0
    assert again.find("data", 1000, 2) is None
    again.add(result("data", 10_000, failed="out of memory"))
    assert len(json.loads(path.read_text())["results"]) == 2
    assert scale.Results(path).found == []


def test_text_goes_between_the_marks_of_a_page(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- scale: begin -->\nold\n<!-- scale: end -->\nafter\n")
    scale.into(page, "scale", "new")
    assert page.read_text() == "before\n<!-- scale: begin -->\n\nnew\n\n<!-- scale: end -->\nafter\n"
    with pytest.raises(SystemExit, match="no marks"):
        scale.into(page, "other", "new")


CHILDREN = {
    "ready, then silent": ("tell(ready={}); time.sleep(60)", {"failed": "not finished in 0.5 s"}),
    "never ready": ("time.sleep(60)", {"failed": "preparing it was not finished in 0.5 s"}),
    "no certificate": (
        "tell(ready={}); tell(done={'cpu': 1.0}); time.sleep(60)",
        {"cpu": 1.0, "note": "its certificate was not finished in 0.5 s"},
    ),
    "out of memory": ("raise MemoryError", {"failed": "out of memory"}),
    "an error": ("raise ValueError('no such thing')", {"failed": "ValueError: no such thing"}),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", CHILDREN)
def test_what_becomes_of_a_child(case, tmp_path, monkeypatch):
    does, expected = CHILDREN[case]
    program = tmp_path / "child.py"
    program.write_text("import json, time\ndef tell(**what): print(json.dumps(what), flush=True)\n" + does)
    monkeypatch.setattr(scale, "__file__", str(program))
    patience = 0.5 if case == "never ready" else 60.0
    found = scale.one("data", 10, 1, "float32", None, limit=0.5, patience=patience)
    assert expected.items() <= found.items()
