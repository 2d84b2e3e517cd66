"""``coterie demo``: the tour."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Group
from rich.markup import escape
from rich.table import Table

from .. import graphs, plots
from ..datasets import gapminder, linear_classification
from ..engines.graph_learning import learn_graph
from ..engines.simulator import simulate
from ..estimators import CollaborativeRegressor
from ..estimators.gains import compared
from ..estimators.storage import save
from ..problem import Problem
from ..problem.baselines import GlobalModel
from .console import AsJson, Seed, bar, check_writable, columns, show, talk, write_figures
from .models import held_out


def demo(
    peers: Annotated[
        bool, typer.Option("--peers", help="Show synthetic users that exchange models with similar peers instead.")
    ] = False,
    agents: Annotated[int, typer.Option(help="With --peers: how many users.", min=2)] = 100,
    features: Annotated[int, typer.Option(help="With --peers: how many features.", min=2)] = 20,
    seed: Seed = 0,
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for the figures.")] = Path("coterie-demo"),
    as_json: AsJson = False,
) -> None:
    """Tour of the library: life expectancy in 142 countries, with one model for each, learned together."""
    check_writable(output)
    if peers:
        _exchange_models(agents, features, seed, output, as_json)
    else:
        _pool_countries(seed, output, as_json)


#: Descriptions of the figures.
SEEN = {
    "report.html": "all of it, in a browser: every country, who is alike, curves",
    "gains.png": "what each country gains",
    "curves.png": "five countries over the years",
    "shrinkage.png": "coefficients, alone and together",
}


def _pool_countries(seed: int, output: Path, as_json: bool) -> None:
    """Fit real grouped data: countries alone, as one, and together; test on held-out years and on new countries."""
    frame = gapminder()
    X, y, ids = frame.drop(columns=["lifeExp", "country"]), frame["lifeExp"], frame["country"]
    names = ids.unique()
    new = ids.isin(np.random.default_rng(seed).choice(names, len(names) // 5, replace=False)).to_numpy()
    test = held_out(ids, 1 / 3, seed) & ~new
    train = ~test & ~new
    with bar("learning", as_json) as progress:
        progress(0, 4)
        model = CollaborativeRegressor().fit(X[train], y[train], agents=ids[train])
        one = CollaborativeRegressor().fit(X[train], y[train])
        progress(1, 4)
        rows: list[dict[str, Any]] = [
            {"models": name, "error": numbers["error"]}
            for name, numbers in compared(model, X[test], y[test], ids[test]).items()
        ]
        low, high = model.predict_interval(X[test], ids[test]).T
        rows[-1]["coverage"] = float(np.mean((low <= y[test]) & (y[test] <= high)))
        low, high = model.predict_interval(X[new], ids[new]).T
        rows[-1] |= {
            "error_new": float(np.sqrt(np.mean((model.predict(X[new], ids[new]) - y[new]) ** 2))),
            "coverage_new": float(np.mean((low <= y[new]) & (y[new] <= high))),
        }
        rows[1]["error_new"] = float(np.sqrt(np.mean((one.predict(X[new]) - y[new]) ** 2)))
        progress(2, 4)
        everything = CollaborativeRegressor().fit(X, y, agents=ids)
        report = everything.report(random_state=seed)
        progress(3, 4)
        over_years = CollaborativeRegressor().fit(X[["year"]], y, agents=ids)
        linear = CollaborativeRegressor(design="linear").fit(X[["year", "gdpPercap"]], y, agents=ids)
        figures = {
            "gains.png": plots.gains(report),
            "curves.png": plots.curves(over_years, "year", ["Cambodia", "China", "Rwanda", "Sweden", "Vietnam"]),
            "shrinkage.png": plots.shrinkage(linear),
        }
        written = write_figures(figures, output)
        save(everything, output / "model")
        report.save(output / "report.html")
        progress(4, 4)
    outliers = report.outliers["agent"].drop_duplicates().tolist() if report.outliers is not None else []
    found = {"models": rows, "outliers": outliers, "figures": written}
    found |= {"report": str(output / "report.html"), "model": str(output / "model")}
    left_out = int(ids[new].nunique())
    show(found, _told(rows, outliers, len(names) - left_out, left_out, output), as_json)


def _told(rows: list[dict[str, Any]], outliers: list[str], known: int, new: int, output: Path) -> Group:
    """Return a summary of the results, and what to look at next."""
    heads = columns("models", right=(f"{known} countries", f"{new} new countries"), no_wrap=True)
    table = Table(*heads, title="Life expectancy: error on held-out rows, in years", title_justify="left")
    words = {"alone": "each country alone", "one model": "one model for all", "together": "a model for each, together"}
    for row in rows:
        cells = (f"{row[name]:.2f}" if name in row else "" for name in ("error", "error_new"))
        table.add_row(words[row["models"]], *cells, style="bold" if row["models"] == "together" else "")
    alone, one, together = rows
    new_error = 1 - together["error_new"] / one["error_new"]
    lines = (
        f"Learned together, models err {1 - together['error'] / alone['error']:.0%} less than alone, "
        f"and {1 - together['error'] / one['error']:.0%} less than one model.",
        f"For new countries, they err {abs(new_error):.0%} {'less' if new_error > 0 else 'more'} than one model.",
        f"90% intervals hold {together['coverage']:.0%} of the labels, "
        f"and {together['coverage_new']:.0%} in new countries.",
        f"Countries that stand out: {', '.join(outliers[:5]) or 'none'}.",
    )
    following = Table.grid(padding=(0, 2))
    following.add_column(no_wrap=True)  # commands must be copied without line breaks
    following.add_column()
    for name, what in SEEN.items():
        following.add_row(f"  {escape(str(output / name))}", what)
    command = escape(command_from_here())
    following.add_row(f"  {command} inspect {escape(str(output / 'model'))}", "what the models found, in words")
    following.add_row(f"  {command} fit --help", "the same for a table of yours")
    following.add_row("  docs/index.md", "tutorials, in the repository")
    return Group(table, "", *lines, "", "Look at next:", following)


def command_from_here() -> str:
    """Return the command for coterie: its name if the shell finds it, otherwise its path."""
    here = Path(sys.executable).with_name("coterie")
    if shutil.which("coterie") is not None or not here.exists():
        return "coterie"
    return str(here.relative_to(Path.cwd())) if here.is_relative_to(Path.cwd()) else str(here)


def _exchange_models(agents: int, features: int, seed: int, output: Path, as_json: bool) -> None:
    """Compare synthetic users' models: each alone, one model for all, and together with similar peers."""
    task = linear_classification(n=agents, p=features, seed=seed)
    if not as_json:
        least, most = task.train.sizes.min(), task.train.sizes.max()
        talk.print(
            f"{agents} users, {features} features, {least} to {most} examples each. Every user looks for its own line; "
            "some of the lines are alike."
        )
    alone = Problem.personalized(task.train, graphs.empty(agents)).local()
    everyone = GlobalModel().models(Problem.personalized(task.train, graphs.empty(agents)))
    runs, problems = {}, {}
    nearest, found, similar = min(10, agents - 1), "with peers they find", "with truly similar peers"
    separate = Problem.personalized(task.train, graphs.empty(agents), mu=3.0)
    with bar("looking for similar peers", as_json) as progress:
        learned = learn_graph(
            alone, separate.losses(alone), separate.loss_weight, kappa=min(5, agents - 1), seed=seed, progress=progress
        )
    for name, graph in (
        (f"with {nearest} nearest peers", graphs.knn(alone, nearest)),
        (found, learned.graph),
        (similar, task.graph),
    ):
        problems[name] = problem = Problem.personalized(task.train, graph, mu=3.0)
        with bar(f"coordinate descent {name}", as_json) as progress:
            how: dict[str, Any] = {"wakes": 60 * agents, "seed": seed, "start": alone, "every": agents}
            runs[name] = simulate(problem, "cd", **how, progress=progress)

    rows = []
    models = {"alone": alone, "one model for all": everyone} | {name: run.theta for name, run in runs.items()}
    for name, theta in models.items():
        score = np.sort(task.accuracy(theta))
        row = {"models": name, "accuracy": score.mean(), "worst_tenth": score[: max(1, agents // 10)].mean()}
        if name in runs:
            optimum = problems[name].value(problems[name].solve())
            row["suboptimality"] = (runs[name].value - optimum) / optimum
            search = learned if name == found else None  # the messages for finding peers count, too
            for unit in ("vectors", "bytes"):
                row[unit] = getattr(runs[name], unit) + (getattr(search, unit) if search else 0)
        rows.append(row)

    heads = columns("models", right=("mean", "worst 10%", "gap", "vectors", "MB sent"), no_wrap=True)
    caption = "gap: relative distance of the objective to the exact optimum"
    table = Table(*heads, title="Accuracy on unseen examples", caption=caption)
    for row in rows:
        cost = []
        if "vectors" in row:
            cost = [f"{row['suboptimality']:.1e}", f"{row['vectors']:,}", f"{row['bytes'] / 1e6:.1f}"]
        table.add_row(row["models"], f"{row['accuracy']:.3f}", f"{row['worst_tenth']:.3f}", *cost)
    optimum = problems[similar].value(problems[similar].solve())
    scores = task.accuracy(alone), task.accuracy(runs[found].theta)
    sizes_and_colours = separate.loss_weight, separate.losses(alone)
    order = np.argsort(np.arctan2(task.targets[:, 1], task.targets[:, 0]))
    figures = {
        "gains.png": plots.gains(task.train.sizes, *scores, title=f"Alone, and {found}"),
        "convergence.png": plots.convergence(runs[similar], optimum),
        "weights.png": plots.weights(task.graph, learned.graph, order=order, titles=["Truly similar", "Found"]),
        "edges.png": plots.edges(
            learned.graph, *sizes_and_colours, title="Who found whom: size is data, colour is loss"
        ),
    }
    show({"models": rows, "figures": write_figures(figures, output)}, table, as_json)
    if not as_json:
        talk.print(f"figures: {', '.join(str(output / figure) for figure in figures)}")
