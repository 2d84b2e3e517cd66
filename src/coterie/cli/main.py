"""The command line.

Exit codes: 0 done; 1 something unforeseen (a bug: please report it); 2 the command was not understood; 3 something
given to it, a file, a column or a number, is not what it must be; 4 an audit failed; 130 interrupted.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pandas as pd
import typer
from matplotlib.figure import Figure
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from sklearn.base import is_classifier

from .. import graphs, plots
from .._version import __version__
from ..core.methods import METHODS
from ..data import AgentData
from ..data.frames import split_frame
from ..data.readers import ids_like, read_table
from ..datasets import gapminder, linear_classification
from ..engines.graph_learning import learn_graph
from ..engines.simulator import simulate
from ..errors import DataError, ParameterError
from ..estimators import CollaborativeClassifier, CollaborativeRegressor
from ..estimators.boosted import BoostedClassifier, BoostedRegressor
from ..estimators.gains import compared
from ..estimators.storage import load, save
from ..estimators.tuning import tune as cross_validate
from ..graphs.reading import read_ties
from ..privacy import Private
from ..privacy import audit as audit_letters
from ..problem import Problem
from ..problem.baselines import BASELINES, GlobalModel
from ..testing import lab as _lab  # noqa: F401 - it adds a command
from . import console, peers
from . import data as real_data
from .console import EXIT_CODES, AsJson, show, talk

AUDIT_FAILED = 4

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Personalised models, learned together: agents exchange models with similar peers, never data.",
    epilog=EXIT_CODES,
)
Seed = Annotated[int, typer.Option(help="Seed of everything random.", min=0)]


def main() -> None:
    """Run the command line; turn refusals into one line and an exit code."""
    console.run(app)


@contextmanager
def _bar(text: str, quiet: bool, known: bool = True, unit: str = "rounds") -> Iterator[Any]:
    """A progress bar for a function of (done, total), shown from its first call on.

    Where the end is not ``known``, because the work stops when it has converged, only what is done is counted.
    """
    count = MofNCompleteColumn() if known else TextColumn(f"{{task.completed:,.0f}} {unit}")
    progress = Progress(TextColumn("{task.description}"), BarColumn(), count, TimeElapsedColumn(), console=talk)
    task = progress.add_task(text, total=None)

    def show(done: int, total: int) -> None:
        if not quiet:
            progress.start()
        progress.update(task, completed=done, total=total if known else None)

    try:
        yield show
        progress.update(task, total=max(progress.tasks[0].completed, 1), completed=max(progress.tasks[0].completed, 1))
    except KeyboardInterrupt:
        progress.stop()
        talk.print("interrupted: nothing was written")
        raise
    finally:
        progress.stop()


def _version(asked: bool) -> None:
    if asked:
        print(f"coterie {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


# -- demo -------------------------------------------------------------------------------------------------------------


@app.command()
def demo(
    peers: Annotated[
        bool, typer.Option("--peers", help="Instead: synthetic users who exchange models with similar peers.")
    ] = False,
    agents: Annotated[int, typer.Option(help="With --peers: how many users.", min=2)] = 100,
    features: Annotated[int, typer.Option(help="With --peers: how many features.", min=2)] = 20,
    seed: Seed = 0,
    output: Annotated[Path, typer.Option("--output", "-o", help="Where figures go.")] = Path("coterie-demo"),
    as_json: AsJson = False,
) -> None:
    """The tour: life expectancy in 142 countries, with a model of its own for each, learned together."""
    _writable(output)
    if peers:
        _exchange_models(agents, features, seed, output, as_json)
    else:
        _pool_countries(seed, output, as_json)


def _pool_countries(seed: int, output: Path, as_json: bool) -> None:
    """Real grouped data: countries alone, all as one, and together; on years held out, and for new countries."""
    frame = gapminder()
    X, y, ids = frame.drop(columns=["lifeExp", "country"]), frame["lifeExp"], frame["country"]
    names = ids.unique()
    new = ids.isin(np.random.default_rng(seed).choice(names, len(names) // 5, replace=False)).to_numpy()
    test = _held_out(ids, 1 / 3, seed) & ~new
    train = ~test & ~new
    if not as_json:
        talk.print(
            f"Life expectancy in {len(names)} countries, 12 times from 1952 to 2007, by continent, year, population "
            f"and income. A third of each country's rows is held out to test on, and {new.sum() // 12} countries "
            "altogether."
        )
    model = CollaborativeRegressor().fit(X[train], y[train], agents=ids[train])
    one = CollaborativeRegressor().fit(X[train], y[train])
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
    table = Table(
        title="Error of life expectancy, in years (root mean square)",
        caption="coverage: how many labels the 90 % intervals hold",
    )
    table.add_column("models", no_wrap=True)
    for column in ("held-out years", "coverage", "new countries", "coverage"):
        table.add_column(column, justify="right")
    for row in rows:
        cells = (
            (name, f"{row[name]:.0%}" if "coverage" in name else f"{row[name]:.2f}") if name in row else (name, "")
            for name in ("error", "coverage", "error_new", "coverage_new")
        )
        table.add_row(row["models"], *(text for _, text in cells))
    everything = CollaborativeRegressor().fit(X, y, agents=ids)
    report = everything.report(seed=seed)
    figures = {
        "curves.png": plots.curves(
            CollaborativeRegressor().fit(X[["year"]], y, agents=ids),
            "year",
            ["Cambodia", "China", "Rwanda", "Sweden", "Vietnam"],
        ),
        "gains.png": plots.gains(report),
        "shrinkage.png": plots.shrinkage(
            CollaborativeRegressor(design="linear").fit(X[["year", "gdpPercap"]], y, agents=ids)
        ),
    }
    outliers = report.outliers["agent"].drop_duplicates().tolist() if report.outliers is not None else []
    show({"models": rows, "outliers": outliers, "figures": _write(figures, output)}, table, as_json)
    if not as_json:
        talk.print(f"Countries that stand out: {', '.join(outliers[:6])}. All there is to say: model.report()")
        talk.print(f"figures: {', '.join(str(output / figure) for figure in figures)}")


def _exchange_models(agents: int, features: int, seed: int, output: Path, as_json: bool) -> None:
    """Synthetic users learn personal models alone, all as one, and together with similar peers."""
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
    with _bar("looking for similar peers", as_json) as progress:
        learned = learn_graph(
            alone, separate.losses(alone), separate.loss_weight, kappa=min(5, agents - 1), seed=seed, progress=progress
        )
    for name, graph in (
        (f"with {nearest} nearest peers", graphs.knn(alone, nearest)),
        (found, learned.graph),
        (similar, task.graph),
    ):
        problems[name] = problem = Problem.personalized(task.train, graph, mu=3.0)
        with _bar(f"coordinate descent {name}", as_json) as progress:
            runs[name] = simulate(
                problem, "cd", wakes=60 * agents, seed=seed, start=alone, every=agents, progress=progress
            )

    rows = []
    for name, theta in (
        ("alone", alone),
        ("one model for all", everyone),
        *((name, run.theta) for name, run in runs.items()),
    ):
        score = np.sort(task.accuracy(theta))
        row = {"models": name, "accuracy": score.mean(), "worst_tenth": score[: max(1, agents // 10)].mean()}
        if name in runs:
            optimum = problems[name].value(problems[name].solve())
            row["suboptimality"] = (runs[name].value - optimum) / optimum
            search = learned if name == found else None  # what it took to find them counts, too
            for unit in ("vectors", "bytes"):
                row[unit] = getattr(runs[name], unit) + (getattr(search, unit) if search else 0)
        rows.append(row)

    table = Table(
        title="Accuracy on unseen examples", caption="gap: relative distance of the objective to the exact optimum"
    )
    table.add_column("models", no_wrap=True)
    for column in ("mean", "worst 10%", "gap", "vectors", "MB sent"):
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(
            row["models"],
            f"{row['accuracy']:.3f}",
            f"{row['worst_tenth']:.3f}",
            f"{row['suboptimality']:.1e}" if "vectors" in row else "",
            f"{row['vectors']:,}" if "vectors" in row else "",
            f"{row['bytes'] / 1e6:.1f}" if "bytes" in row else "",
        )
    optimum = problems[similar].value(problems[similar].solve())
    angle = np.arctan2(task.targets[:, 1], task.targets[:, 0])
    figures = {
        "gains.png": plots.gains(
            task.train.sizes, task.accuracy(alone), task.accuracy(runs[found].theta), title=f"Alone, and {found}"
        ),
        "convergence.png": plots.convergence(runs[similar], optimum),
        "weights.png": plots.weights(
            task.graph, learned.graph, order=np.argsort(angle), titles=["Truly similar", "Found"]
        ),
        "ties.png": plots.ties(
            learned.graph,
            separate.loss_weight,
            separate.losses(alone),
            title="Who found whom: size is data, colour is loss",
        ),
    }
    show({"models": rows, "figures": _write(figures, output)}, table, as_json)
    if not as_json:
        talk.print(f"figures: {', '.join(str(output / figure) for figure in figures)}")


def _write(figures: dict[str, Figure], folder: Path) -> list[str]:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, figure in figures.items():
            figure.savefig(folder / name, dpi=120)
    except OSError as error:
        raise DataError(f"cannot write figures to {folder}: {error}") from None
    return [str(folder / name) for name in figures]


# -- fit --------------------------------------------------------------------------------------------------------------


class Task(StrEnum):
    """What the target is."""

    auto = "auto"
    classification = "classification"
    regression = "regression"


#: Methods of a front-door estimator beside pooling.
OVER_GRAPH = [name for name in (*METHODS, *BASELINES) if name not in ("boosting", "gossip-pooling")]
#: Which estimator a task needs, without boosting and with it.
ESTIMATORS = {
    (Task.classification, False): CollaborativeClassifier,
    (Task.classification, True): BoostedClassifier,
    (Task.regression, False): CollaborativeRegressor,
    (Task.regression, True): BoostedRegressor,
}


@app.command()
def fit(
    data: Annotated[Path, typer.Argument(help="A csv or parquet file, one row for each example.")],
    agent: Annotated[str, typer.Option(help="The column that says whose row it is.")],
    target: Annotated[str, typer.Option(help="The column to predict.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Directory of the model.")],
    task: Annotated[
        Task, typer.Option(help="auto: text, booleans and at most 20 whole numbers are classes.")
    ] = Task.auto,
    method: Annotated[
        str,
        typer.Option(
            help=f"pooling: a common model and personal deviations. Over a graph: {', '.join(OVER_GRAPH)}. "
            "boosting: decision stumps."
        ),
    ] = "pooling",
    design: Annotated[str, typer.Option(help="Of pooling: auto, linear, or additive (curves).")] = "auto",
    deviations: Annotated[str, typer.Option(help="Of pooling: auto, full, diagonal or scalar.")] = "auto",
    missing: Annotated[str, typer.Option(help="fill: gaps become the mean and an indicator; error: refuse.")] = "fill",
    graph: Annotated[
        str | None,
        typer.Option(
            help="auto (pooling only), knn, learn, or a csv file of ties with columns agent, peer, weight. "
            "Default: none for pooling, else learn."
        ),
    ] = None,
    neighbours: Annotated[int, typer.Option(help="Peers of each agent, for knn.", min=1)] = 5,
    loss: Annotated[
        str | None,
        typer.Option(
            help="Of pooling: logistic; squared, student, poisson or auto. Over a graph: logistic or smooth-hinge; "
            "squared or huber."
        ),
    ] = None,
    mu: Annotated[
        float, typer.Option(help="Own data against agreement with peers; for boosting, agreement against own data.")
    ] = 1.0,
    lam: Annotated[float, typer.Option(help="For a learned graph: the larger, the more ties.")] = 1.0,
    beta: Annotated[float, typer.Option(help="For boosting: how closely to fit.")] = 3.0,
    stumps: Annotated[int, typer.Option(help="For boosting: how many decision stumps.", min=1)] = 200,
    tune: Annotated[
        bool, typer.Option(help="Choose mu, lam and beta by cross-validation inside each agent's rows.")
    ] = False,
    ridge: Annotated[str, typer.Option(help='A number, or "1/m": 1 / rows of the agent. Not for boosting.')] = "1/m",
    holdout: Annotated[
        float, typer.Option(help="Share of each agent's rows kept to measure the gain.", min=0, max=0.9)
    ] = 0.0,
    max_wakes: Annotated[int, typer.Option(help="Wakes of each agent at most.", min=1)] = 10_000,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Learn one model for each agent of a table, and keep them."""
    if agent == target:
        raise ParameterError(f"--agent and --target are both {agent!r}: they must be two columns")
    _writable(output)
    frame = read_table(data)
    features, [ids, y] = split_frame(frame, agent, target)
    kind = _task_of(y) if task == Task.auto else task
    if task == Task.auto and not as_json:
        kinds = f"classes, {y.nunique()} of them" if kind == Task.classification else "numbers"
        talk.print(f"{target!r} is taken for {kinds} (--task says otherwise)")
    boosts = method == "boosting"
    estimator: Any = ESTIMATORS[kind, boosts]
    if kind == Task.regression and not pd.api.types.is_numeric_dtype(y):
        raise DataError(f"column {target!r} holds text: it cannot be the target of a regression")
    settings = {"method": method, "neighbours": neighbours, "mu": mu, "lam": lam, "max_wakes": max_wakes, "seed": seed}
    if boosts:
        if loss is not None:
            raise ParameterError(f"--loss {loss}: boosting has a loss of its own, leave it out")
        settings |= {"base": stumps, "beta": beta}
    else:
        settings |= {"loss": loss, "design": design, "deviations": deviations, "missing": missing}
        settings["ridge"] = _number_or("1/m", ridge, "--ridge")
    if method == "pooling" and tune:
        raise ParameterError("--tune: pooling learns its strengths by itself, there is nothing to tune; leave it out")
    everyone = AgentData(np.zeros((len(frame), 1)), agents=ids)
    known = graph in (None, "auto", "learn", "knn")
    settings["graph"] = graph if known else read_ties(Path(str(graph)), everyone)
    if boosts and graph is None:
        settings["graph"] = "learn"

    result: dict[str, Any] = {
        "task": str(kind),
        "agents": everyone.n,
        "rows": len(frame),
        "features": features.shape[1],
    }
    test = _held_out(ids, holdout, seed)
    with _warnings():
        if tune:
            with _bar("cross-validation", as_json) as progress:
                chosen = cross_validate(
                    estimator(**settings, members=everyone.members),
                    features[~test],
                    y[~test],
                    ids[~test],
                    seed=seed,
                    progress=progress,
                )
            settings |= chosen.parameters
            result["tuned"] = chosen.parameters | {"cross-validated score": chosen.score}
        if holdout > 0:
            result["holdout"] = _measure_gain(estimator, settings, features, y, ids, test, as_json)
        with _bar(f"learning {everyone.n} models", as_json, known=False) as progress:
            model = estimator(**settings).fit(
                frame.drop(columns=target), y, agents=agent, progress=lambda done, total=0: progress(done, total)
            )
    try:
        save(model, output)
    except OSError as error:
        raise DataError(f"cannot write the model to {output}: {error}") from None
    result |= {"model": str(output)} | _told(model)
    table = Table(title=f"{result['agents']} personal models in {output}", show_header=False)
    for name, value in result.items():
        for label, number in value.items() if isinstance(value, dict) else [(name, value)]:
            form = ",.4g" if isinstance(number, float) else "," if isinstance(number, int) else ""
            table.add_row(label.replace("_", " "), format(number, form))
    show(result, table, as_json)


def _told(model: Any) -> dict[str, Any]:
    """What a fit has to say of itself."""
    if model.graph_ is not None:
        told: dict[str, Any] = {"ties": model.graph_.n_edges}
    else:
        told = {}
    if hasattr(model, "run_"):
        run, n = model.run_, len(model.agents_)
        run = run[0] if isinstance(run, list) else run
        return told | {
            "wakes_per_agent": run.wakes / n,
            "vectors": run.vectors,
            "bytes": run.bytes,
            "objective": run.value,
        }
    told |= {"design": model.design_, "log_evidence": model.log_evidence_}
    if getattr(model, "noise_", None) is not None:
        told["noise"] = float(model.noise_)
    return told | {f"column {k + 1}": note for k, note in enumerate(model._columns.notes)}


def _task_of(y: Any) -> Task:
    """Classification for text, booleans and at most 20 whole numbers; regression for other numbers."""
    if not pd.api.types.is_numeric_dtype(y) or pd.api.types.is_bool_dtype(y):
        return Task.classification
    values = y.dropna().unique()
    whole = np.all(np.mod(values.astype(float), 1) == 0)
    return Task.classification if whole and len(values) <= 20 else Task.regression


def _held_out(ids: Any, share: float, seed: int) -> np.ndarray:
    """Which rows are kept to measure the gain. An agent keeps at least one row to learn from."""
    rng = np.random.default_rng(seed)
    place = pd.Series(rng.permutation(len(ids))).groupby(np.asarray(ids)).rank()
    size = place.groupby(np.asarray(ids)).transform("size")
    test: np.ndarray = (place <= np.floor(share * size)).to_numpy()
    if share > 0 and not test.any():
        raise ParameterError(f"--holdout {share:g}: no agent has enough rows to spare one")
    return test


def _measure_gain(
    estimator: Any, settings: dict[str, Any], X: Any, y: Any, ids: Any, test: np.ndarray, quiet: bool
) -> dict[str, float]:
    """Scores on held-out rows: alone, with one model for all, and together."""
    scores: dict[str, float] = {}
    everyone = AgentData(np.zeros((len(X), 1)), agents=ids).members
    pools = settings["method"] == "pooling"
    if pools:
        with _bar("measuring the gain", quiet, known=False) as progress:
            model = estimator(**settings, members=everyone)
            model.fit(X[~test], y[~test], agents=ids[~test], progress=lambda done: progress(done, done))
        found = compared(model, X[test], y[test], ids[test])
        scores = {name: numbers["score"] for name, numbers in found.items()}
    ways: dict[str, dict[str, Any]] = {"alone": {"method": "local"}, "one model": {"method": "global"}, "together": {}}
    for name, changes in ({} if pools else ways).items():
        shared = {"graph": graphs.empty(len(everyone)), "design": "auto", "loss": None} if changes else {}
        known = estimator().get_params()
        shared = {key: value for key, value in (shared | changes).items() if key in known}
        with _bar(f"measuring the gain, {name}", quiet, known=False) as progress:
            model = estimator(**settings | shared, members=everyone)
            model.fit(
                X[~test], y[~test], agents=ids[~test], progress=lambda done, total=0, show=progress: show(done, total)
            )
        scores[name] = model.score(X[test], y[test], agents=ids[test])
    metric = "accuracy" if is_classifier(estimator()) else "R2"
    if scores["together"] < max(scores["alone"], scores["one model"]) and not quiet:
        other = "boosting" if pools else "pooling"
        talk.print(f"together is not the best on these rows: compare --method {other}")
    return {"held-out rows": int(test.sum())} | {f"{metric} {name}": score for name, score in scores.items()}


def _number_or(word: str, text: str, option: str) -> float | str:
    try:
        return word if text == word else float(text)
    except ValueError:
        raise ParameterError(f'{option} {text}: it must be a number, or "{word}"') from None


@contextmanager
def _warnings() -> Iterator[None]:
    """Say what the library warns of, once, without a source line."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        yield
    for message in dict.fromkeys(str(warning.message) for warning in caught):
        talk.print(f"[yellow]warning:[/] {escape(message)}", soft_wrap=True)


# -- predict ----------------------------------------------------------------------------------------------------------


@app.command()
def predict(
    model: Annotated[Path, typer.Argument(help="The directory that fit wrote.")],
    data: Annotated[
        Path, typer.Argument(help="A csv or parquet file with the same columns; the target may be missing.")
    ],
    agent: Annotated[str | None, typer.Option(help="The column of agents. Default: as in fit.")] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="A csv file. Default: standard output.")] = None,
    interval: Annotated[
        float | None, typer.Option(help="Also columns low and high that hold this share of new labels, such as 0.9.")
    ] = None,
    probabilities: Annotated[
        bool, typer.Option("--probabilities", help="Of classes: also a column for each, such as 'probability of yes'.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Add a column of predictions to a table, each by the model of the row's own agent.

    An agent that was never met is predicted by what the others have in common.
    """
    if output is not None:
        _writable(output.parent)
        if output.is_dir():
            raise DataError(f"cannot write predictions to {output}: it is a folder")
    fitted = load(model)
    frame = read_table(data)
    column = agent or fitted._agent_column
    if column is None:
        raise ParameterError("the model does not know its column of agents: name it with --agent")
    features, [ids] = split_frame(frame, column)
    missing = [name for name in fitted.feature_names_in_ if name not in features.columns]
    if missing:
        raise DataError(f"{data} has no column {missing[0]!r}, which the model was fitted with")
    ids = _ids_like(fitted, ids)
    rows = features[list(fitted.feature_names_in_)]
    known = set(fitted.agents_)
    strangers = [agent for agent in ids.unique().tolist() if agent not in known]
    with _warnings():
        warnings.filterwarnings("ignore", message="none of these agents was met")  # said below
        predictions = fitted.predict(rows, agents=ids)
    table = frame.assign(prediction=predictions)
    more: dict[str, Any] = {}
    if interval is not None:
        if not hasattr(fitted, "predict_interval"):
            raise ParameterError("--interval: only models of numbers have intervals")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            low, high = fitted.predict_interval(rows, agents=ids, coverage=interval).T
        more |= {"low": low, "high": high}
    if probabilities:
        if not hasattr(fitted, "classes_"):
            raise ParameterError("--probabilities: only models of classes have probabilities")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            found = fitted.predict_proba(rows, agents=ids)
        more |= {f"probability of {name}": found[:, k] for k, name in enumerate(fitted.classes_.tolist())}
    table = table.assign(**more)
    if output is not None:
        draft = output.with_name(f".{output.name}.part")
        try:
            table.to_csv(draft, index=False)
            draft.replace(output)
        except OSError as error:
            draft.unlink(missing_ok=True)
            raise DataError(f"cannot write predictions to {output}: {error}") from None
    if as_json:
        result = {"predictions": predictions, **more, "never_met": strangers, "output": output}
        print(json.dumps(result, default=lambda value: value.tolist() if hasattr(value, "tolist") else str(value)))
        return
    if strangers:
        shown = ", ".join(map(repr, strangers[:3])) + ("..." if len(strangers) > 3 else "")
        talk.print(f"{len(strangers)} agent(s) never met ({shown}): predicted by what the others have in common")
    if output is None:
        table.to_csv(sys.stdout, index=False)
    else:
        talk.print(f"{len(table)} predictions in {output}")


def _ids_like(model: Any, ids: pd.Series) -> pd.Series:
    """Ids of a table as the model has them: one odd value in a column of numbers makes all of it text."""
    if all(isinstance(agent, str) for agent in model.agents_):
        return ids.astype(str)
    if pd.api.types.is_numeric_dtype(ids):
        return ids
    numbers = pd.to_numeric(ids, errors="coerce")
    return ids.astype(object).where(numbers.isna(), numbers.astype(object))


# -- inspect ----------------------------------------------------------------------------------------------------------


@app.command()
def inspect(
    model: Annotated[Path, typer.Argument(help="The directory that fit wrote.")],
    data: Annotated[
        Path | None, typer.Option(help="The table that the model was fitted with: needed to measure gains.")
    ] = None,
    target: Annotated[str | None, typer.Option(help="The column of labels in it.")] = None,
    agent: Annotated[str | None, typer.Option(help="The column of agents in it. Default: as in fit.")] = None,
    folds: Annotated[int, typer.Option(help="Parts of each agent's rows, to measure gains.", min=2)] = 5,
    seed: Seed = 0,
    figures: Annotated[Path | None, typer.Option(help="Draw figures, too, and write them to this folder.")] = None,
    as_json: AsJson = False,
) -> None:
    """What a model found: who gains, which features differ, who is an outlier, what was chosen and why."""
    if (data is None) != (target is None):
        raise ParameterError("--data and --target go together: a table, and its column of labels")
    if figures is not None:
        _writable(figures)
    fitted = load(model)
    if not hasattr(fitted, "report"):
        raise ParameterError(f"{model} holds a {type(fitted).__name__}, which has no report; linear models have")
    rows: dict[str, Any] = {}
    if data is not None:
        column = agent or fitted._agent_column
        if column is None:
            raise ParameterError("the model does not know its column of agents: name it with --agent")
        features, [ids, y] = split_frame(read_table(data), column, target)
        missing = [name for name in fitted.feature_names_in_ if name not in features.columns]
        if missing:
            raise DataError(f"{data} has no column {missing[0]!r}, which the model was fitted with")
        rows = {"X": features[list(fitted.feature_names_in_)], "y": y, "agents": _ids_like(fitted, ids)}
    report = fitted.report(folds=folds, seed=seed, **rows)
    written = [] if figures is None else _write(_figures(fitted, report), figures)
    if as_json:
        show(report.to_dict() | {"figures": written}, "", as_json)
        return
    print(report)
    if written:
        talk.print(f"figures: {', '.join(written)}")


def _figures(model: Any, report: Any) -> dict[str, Figure]:
    """What can be drawn of a model: gains, how coefficients shrink, and the column that differs most."""
    found = {} if report.gains is None else {"gains.png": plots.gains(report)}
    if report.features is None or report.outliers is None:
        return found
    if report.gains is not None and model._models[0].kept is None:
        found["shrinkage.png"] = plots.shrinkage(model)
    kind = report.features["kind"]
    for name, kinds, draw in (
        ("coefficients", ["line"], plots.caterpillar),
        ("curves", ["curve", "line"], plots.curves),
    ):
        some = report.features[kind.isin(kinds)]
        if len(some):
            found[f"{name}.png"] = draw(model, some["feature"].iloc[0])
    return found


def _writable(path: Path) -> None:
    """Refuse early where a folder or file cannot be made later."""
    ancestor = path
    while not ancestor.exists() and ancestor != ancestor.parent:
        ancestor = ancestor.parent
    if not (ancestor.is_dir() and os.access(ancestor, os.W_OK)):
        raise DataError(f"cannot write to {path}: {ancestor} is not a folder that can be written to")


class Mechanism(StrEnum):
    """Where noise comes from."""

    gaussian = "gaussian"
    laplace = "laplace"
    exponential = "exponential"


@app.command()
def audit(
    method: Annotated[str, typer.Option(help="cd, propagation, boosting or gossip-pooling.")] = "cd",
    epsilon: Annotated[float, typer.Option(help="The budget that is claimed, > 0.")] = 1.0,
    delta: Annotated[float, typer.Option(help="Its delta, in (0, 1).")] = 1e-5,
    mechanism: Annotated[Mechanism | None, typer.Option(help="Default: gaussian; exponential for boosting.")] = None,
    clip: Annotated[float, typer.Option(help="Norm to which an example's gradient is clipped.")] = 1.0,
    wakes_per_agent: Annotated[int | None, typer.Option(help="Releases that the budget is split for.")] = None,
    features: Annotated[int, typer.Option(help="Length of a model, and number of canaries in a run.")] = 64,
    runs: Annotated[int | None, typer.Option(help="Runs in each scenario. Default: enough.")] = None,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Attack a private method's letters, and see whether they tell more than they may."""
    private = Private(
        method,
        epsilon,
        delta,
        None if mechanism is None else mechanism.value,
        clip,
        wakes_per_agent,
    )
    with _bar("auditing", as_json) as progress:
        result = audit_letters(private, features=features, runs=runs, seed=seed, progress=progress)
    table = Table(title=repr(result))
    for name in ("scenario", "epsilon", "claimed delta", "leak", "trials"):
        table.add_column(name, justify="left" if name == "scenario" else "right")
    worst = result.table.loc[
        (result.table["leak"] - result.table["claimed"]).groupby(result.table["scenario"]).idxmax()
    ]
    for _, line in worst.iterrows():
        numbers = (f"{line[name]:.3g}" for name in ("epsilon", "claimed", "leak"))
        table.add_row(line["scenario"], *numbers, f"{line['trials']:,}")
    found = {"passed": result.passed, "method": repr(private), "epsilon_lower": result.epsilon_lower}
    show(found | {"table": result.table.to_dict(orient="records")}, table, as_json)
    if not result.passed:
        raise typer.Exit(AUDIT_FAILED)


# -- real peers, the papers, real data ---------------------------------------------------------------------------------

app.add_typer(peers.group, name="group")
app.add_typer(peers.peer, name="peer")
app.registered_commands += peers.app.registered_commands
app.add_typer(real_data.app, name="data")


if __name__ == "__main__":
    main()
