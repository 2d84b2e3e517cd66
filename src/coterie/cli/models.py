"""``coterie fit``, ``predict`` and ``inspect``: models of a table, their predictions, and their report."""

from __future__ import annotations

import inspect as signatures
import sys
import warnings
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pandas as pd
import typer
from rich.table import Table

from .. import graphs, plots
from .._files import write_atomic
from .._folds import places
from ..core.methods import METHODS
from ..data.frames import split_frame
from ..data.ids import agent_codes
from ..data.sources.files import has_wildcard, is_url
from ..data.sources.readers import ids_like, read_table, read_tables
from ..data.sources.survey import collected
from ..errors import DataError, ParameterError
from ..estimators import BoostedClassifier, BoostedRegressor, CollaborativeClassifier, CollaborativeRegressor
from ..estimators.gains import compared
from ..estimators.page import check_path
from ..estimators.storage import load, save
from ..estimators.tuning import tune as cross_validate
from ..graphs.builders import read_edges
from ..problem.baselines import BASELINES
from .console import AsJson, Seed, bar, check_writable, show, talk, waiting, warnings_said, write_figures, writing

# -- fit --------------------------------------------------------------------------------------------------------------


class Task(StrEnum):
    """Kind of the target."""

    auto = "auto"
    classification = "classification"
    regression = "regression"


#: Methods of the main estimators other than pooling.
OVER_GRAPH = [*(name for name, rule in METHODS.items() if rule.minimises and not rule.on_balls), *BASELINES]
#: The estimator for a task, without boosting and with it.
ESTIMATORS: dict[tuple[Task, bool], Any] = {
    (Task.classification, False): CollaborativeClassifier,
    (Task.classification, True): BoostedClassifier,
    (Task.regression, False): CollaborativeRegressor,
    (Task.regression, True): BoostedRegressor,
}


#: Parameters of the estimators with their defaults, without boosting and with it.
SETTINGS: dict[str, Any] = {
    "": signatures.signature(CollaborativeRegressor.__init__).parameters,
    "with boosting ": signatures.signature(BoostedRegressor.__init__).parameters,
}


def _option(text: str, parameter: str, *names: str, **more: Any) -> Any:
    """Return an option that the estimators have a default for."""
    found = {way: known[parameter].default for way, known in SETTINGS.items() if parameter in known}
    if len(set(found.values())) == 1:
        found = {"": next(iter(found.values()))}
    default = ", ".join(f"{way}{value}" for way, value in found.items())
    return typer.Option(*names, help=f"{text} Default: {default}.", **more)


def fit(
    ctx: typer.Context,
    data: Annotated[
        str, typer.Argument(help="A csv or parquet file, one row for each example; or a directory or glob of them.")
    ],
    agent: Annotated[str, typer.Option(help="The column, or hive partition, of the agents.")],
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
    design: Annotated[str | None, _option("For pooling: auto, linear, or additive (curves).", "design")] = None,
    deviations: Annotated[str | None, _option("For pooling: auto, full, diagonal or scalar.", "deviations")] = None,
    missing: Annotated[
        str | None, _option("fill: gaps become the mean and an indicator; error: refuse.", "missing")
    ] = None,
    graph: Annotated[
        str | None,
        typer.Option(
            help="auto (pooling only), knn, learn, or a csv file of edges with columns agent, peer, weight. "
            "Default: none for pooling, else learn."
        ),
    ] = None,
    n_neighbors: Annotated[int | None, _option("Edges of each agent, for knn.", "n_neighbors", min=1)] = None,
    loss: Annotated[
        str | None,
        typer.Option(
            help="For pooling: logistic; squared, student, poisson or auto. Over a graph: logistic or smooth-hinge; "
            "squared or huber."
        ),
    ] = None,
    coupling: Annotated[
        float | None, _option("Over a graph: strength of agreement with neighbours.", "coupling")
    ] = None,
    lam: Annotated[float | None, _option("For a learned graph: larger values give more edges.", "lam")] = None,
    beta: Annotated[float | None, _option("For boosting: larger values fit the data more closely.", "beta")] = None,
    base: Annotated[int | None, _option("For boosting: number of decision stumps.", "base", "--stumps", min=1)] = None,
    tune: Annotated[
        bool, typer.Option(help="Choose coupling, lam and beta by cross-validation inside each agent's rows.")
    ] = False,
    ridge: Annotated[str | None, _option('Over a graph: a number, or "1/m": 1 / rows of the agent.', "ridge")] = None,
    holdout: Annotated[
        float, typer.Option(help="Share of each agent's rows kept to measure the gain.", min=0, max=0.9)
    ] = 0.0,
    max_iter: Annotated[
        int | None, _option("Over a graph: maximum number of wakes of each agent.", "max_iter", min=1)
    ] = None,
    n_jobs: Annotated[
        int | None,
        typer.Option("--jobs", help="Number of threads, which changes no result. Default: one for each core.", min=1),
    ] = None,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Learn one model for each agent of a table, and save the models."""
    if agent == target:
        raise ParameterError(f"--agent and --target are both {agent!r}: they must be two columns")
    check_writable(output)
    frame = _read(data, agent, target)
    features, [ids, y] = split_frame(frame, agent, target)  # both must be among the columns
    kind = _task_of(y, target, as_json) if task == Task.auto else task
    if kind == Task.regression and not pd.api.types.is_numeric_dtype(y):
        raise DataError(f"column {target!r} holds text: it cannot be the target of a regression")
    if method == "pooling" and tune:
        raise ParameterError("--tune: pooling learns its strengths by itself, there is nothing to tune; leave it out")
    if method == "boosting" and loss is not None:
        raise ParameterError(f"--loss {loss}: boosting has a loss of its own, leave it out")
    estimator = ESTIMATORS[kind, method == "boosting"]
    settings = _settings(estimator, ctx) | {"random_state": seed}
    if ridge is not None:
        settings["ridge"] = _ridge(ridge)
    if graph not in (None, "auto", "learn", "knn"):
        settings["graph"] = read_edges(Path(str(graph)), agent_codes(ids)[1])
    found: dict[str, Any] = {}
    with warnings_said():
        if tune or holdout > 0:
            rows = {"X": features, "y": y, "agents": ids}
            found = _tried(estimator, settings, rows, tune, held_out(ids, holdout, seed), seed, as_json)
        with bar("learning one model for each agent", as_json, known=False) as progress:
            # Columns are passed by name, since the model stores the names.
            model = estimator(**settings).fit(frame, target, agents=agent, progress=progress)
    with writing("the model", output):
        save(model, output)
    result = {"task": str(kind), "agents": len(model.agents_), "rows": len(frame), "features": features.shape[1]}
    _show_fit(result | found | {"model": str(output)} | _told(model), output, as_json)


def _read(data: str, agent: str, target: str) -> pd.DataFrame:
    """Read a file, or all files of a directory, a glob or a URL, as one table."""
    if Path(data).is_file() or not (Path(data).is_dir() or has_wildcard(data) or is_url(data)):
        return read_table(data, ids=[agent])
    X, y, _, _ = collected(data, target, agent)
    return X.assign(**{target: y})


def _settings(estimator: Any, ctx: typer.Context) -> dict[str, Any]:
    """Return the given options by the names of the estimator's parameters; other parameters keep their defaults."""
    asked = {}
    for option in ctx.command.params:
        name, value = str(option.name), ctx.params[str(option.name)]
        if value is not None and any(name in known for known in SETTINGS.values()):
            if name not in signatures.signature(estimator.__init__).parameters:
                raise ParameterError(f"{option.opts[0]}: {estimator.__name__} has no such setting, leave it out")
            asked[name] = value
    return asked


def _tried(
    estimator: Any, settings: dict[str, Any], rows: dict[str, Any], tune: bool, test: np.ndarray, seed: int, quiet: bool
) -> dict[str, Any]:
    """Tune settings, which are changed in place, by cross-validation, and measure the gain on held-out rows."""
    everyone, found = agent_codes(rows["agents"])[1], {}
    train, unseen = ({name: part[some] for name, part in rows.items()} for some in (~test, test))
    if tune:
        with bar("cross-validation", quiet) as progress:
            model = estimator(**settings, members=everyone)
            chosen = cross_validate(model, **train, random_state=seed, refit=False, progress=progress)
        settings |= chosen.best_params_
        found["tuned"] = chosen.best_params_ | {"cross-validated score": chosen.best_score_}
    if test.any():
        found["holdout"] = _measure_gain(estimator, settings | {"members": everyone}, train, unseen, quiet)
    return found


def _show_fit(result: dict[str, Any], output: Path, as_json: bool) -> None:
    table = Table(title=f"{result['agents']} personal models in {output}", show_header=False)
    for name, value in result.items():
        for label, number in value.items() if isinstance(value, dict) else [(name, value)]:
            form = ",.4g" if isinstance(number, float) else "," if isinstance(number, int) else ""
            table.add_row(label.replace("_", " "), format(number, form))
    show(result, table, as_json)


def _told(model: Any) -> dict[str, Any]:
    """Return facts about a fitted model."""
    told: dict[str, Any] = {} if model.graph_ is None else {"edges": model.graph_.n_edges}
    if model._models.runs:
        run, n = model._models.runs[0], len(model.agents_)
        cost = {"wakes_per_agent": run.wakes / n, "vectors": run.vectors, "bytes": run.bytes}
        return told | cost | {"objective": run.value}
    told |= {"design": model.design_, "log_evidence": model.log_evidence_}
    if model._kind == "regressor" and model.noise_ is not None:
        told["noise"] = float(model.noise_)
    return told | {f"column {k + 1}": note for k, note in enumerate(model._columns.notes)}


def _task_of(y: Any, target: str, quiet: bool) -> Task:
    """Return classification for text, booleans and at most 20 whole numbers, and regression for other numbers."""
    kind = Task.classification
    if pd.api.types.is_numeric_dtype(y) and not pd.api.types.is_bool_dtype(y):
        values = y.dropna().unique()
        whole = np.all(np.mod(values.astype(float), 1) == 0)
        kind = Task.classification if whole and len(values) <= 20 else Task.regression
    if not quiet:
        kinds = f"classes, {y.nunique()} of them" if kind == Task.classification else "numbers"
        talk.print(f"{target!r} is taken for {kinds} (--task says otherwise)")
    return kind


def held_out(ids: Any, share: float, seed: int) -> np.ndarray:
    """Return a mask of rows that are held out to measure the gain. Every agent keeps at least one row to learn from."""
    owner = agent_codes(ids)[0]
    place = places(owner, np.random.default_rng(seed).permutation(len(ids)))
    test = np.asarray(place < np.floor(share * np.bincount(owner)[owner]))
    if share > 0 and not test.any():
        raise ParameterError(f"--holdout {share:g}: no agent has enough rows to spare one")
    return test


def _measure_gain(
    estimator: Any, settings: dict[str, Any], train: dict[str, Any], unseen: dict[str, Any], quiet: bool
) -> dict[str, float]:
    """Return scores on held-out rows: alone, with one model for all, and together."""
    pools = settings["method"] == "pooling"
    if pools:
        with bar("measuring the gain", quiet, known=False) as progress:
            model = estimator(**settings).fit(**train, progress=progress)
        scores = {name: found["score"] for name, found in compared(model, *unseen.values()).items()}
    else:
        scores = {}
        # Agents alone need no graph; the loss and the design of the together model do not apply.
        others = {key: value for key, value in settings.items() if key not in ("design", "loss")}
        others["graph"] = graphs.empty(len(settings["members"]))
        ways = {"alone": others | {"method": "local"}, "one model": others | {"method": "global"}, "together": settings}
        for name, way in ways.items():
            with bar(f"measuring the gain, {name}", quiet, known=False) as progress:
                model = estimator(**way).fit(**train, progress=progress)
            scores[name] = model.score(**unseen)
    metric = "accuracy" if model._kind == "classifier" else "R2"
    if scores["together"] < max(scores["alone"], scores["one model"]) and not quiet:
        other = "boosting" if pools else "pooling"
        talk.print(f"together is not the best on these rows: compare --method {other}")
    return {"held-out rows": len(unseen["y"])} | {f"{metric} {name}": score for name, score in scores.items()}


def _ridge(text: str) -> float | str:
    try:
        return text if text == "1/m" else float(text)
    except ValueError:
        raise ParameterError(f'--ridge {text}: it must be a number, or "1/m"') from None


# -- predict ----------------------------------------------------------------------------------------------------------


def predict(
    model: Annotated[Path, typer.Argument(help="The directory that fit wrote.")],
    data: Annotated[
        Path, typer.Argument(help="A file or a directory with the same columns; the target may be missing.")
    ],
    agent: Annotated[str | None, typer.Option(help="The column of agents. Default: as in fit.")] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="A csv file. Default: standard output.")] = None,
    interval: Annotated[
        float | None, typer.Option(help="Add columns low and high of intervals with this probability, such as 0.9.")
    ] = None,
    probabilities: Annotated[
        bool, typer.Option("--probabilities", help="For classes: add a column for each, such as 'probability of yes'.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Add a column of predictions to a table, each by the model of the row's agent.

    An agent that was not in the training rows is predicted by the model that the other agents have in common.
    """
    if output is not None:
        check_writable(output.parent)
        if output.is_dir():
            raise DataError(f"cannot write predictions to {output}: it is a folder")
    fitted = load(model)
    if interval is not None and not hasattr(fitted, "predict_interval"):
        raise ParameterError("--interval: only regression models have intervals")
    if probabilities and fitted._kind != "classifier":
        raise ParameterError("--probabilities: only classifiers have probabilities")
    frame, rows, ids, _ = _rows_for(fitted, data, agent)
    names = ["prediction", *(() if interval is None else ("low", "high"))]
    names += [f"probability of {name}" for name in fitted.classes_.tolist()] if probabilities else []
    taken = [name for name in names if name in frame.columns]
    if taken and (output is not None or not as_json):
        raise DataError(
            f"{data} has a column {taken[0]!r}, the name of a column of predictions: rename it, or get the predictions "
            "alone by --json without --output"
        )
    known = set(fitted.agents_)
    strangers = [agent for agent in ids.unique().tolist() if agent not in known]
    with warnings_said():
        warnings.filterwarnings("ignore", message="none of these agents was in the training rows")  # printed below
        predictions = fitted.predict(rows, agents=ids)
    more: dict[str, Any] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # printed above
        if interval is not None:
            more["low"], more["high"] = fitted.predict_interval(rows, agents=ids, coverage=interval).T
        if probabilities:
            found = fitted.predict_proba(rows, agents=ids)
            more |= {f"probability of {name}": found[:, k] for k, name in enumerate(fitted.classes_.tolist())}
    table = frame.assign(prediction=predictions, **more)
    if output is not None:
        with writing("predictions", output):
            write_atomic(output, table.to_csv(index=False).encode(), durable=False)
    if as_json:
        show({"predictions": predictions, **more, "never_met": strangers, "output": output}, "", as_json)
        return
    if strangers:
        shown = ", ".join(map(repr, strangers[:3])) + ("..." if len(strangers) > 3 else "")
        talk.print(f"{len(strangers)} new agent(s) ({shown}): predicted by the model that all agents have in common")
    if output is None:
        table.to_csv(sys.stdout, index=False)
    else:
        talk.print(f"{len(table)} predictions in {output}")


def _rows_for(
    fitted: Any, data: Path, agent: str | None, target: str | None = None
) -> tuple[pd.DataFrame, pd.DataFrame, pd.Series, Any]:
    """Return a table, its columns that a model was fitted with, the agents of its rows, and the labels if requested."""
    column = agent or fitted._agent_column
    if column is None:
        raise ParameterError("the model does not know its column of agents: name it with --agent")
    frame = read_tables(data, ids=[column], as_text=True)
    features, [ids, *labels] = split_frame(frame, column, *([] if target is None else [target]))
    missing = [name for name in fitted.feature_names_in_ if name not in features.columns]
    if missing:
        raise DataError(f"{data} has no column {missing[0]!r}, which the model was fitted with")
    rows = features[list(fitted.feature_names_in_)]
    return frame, rows, ids_like(ids, fitted.agents_), labels[0] if labels else None


# -- inspect ----------------------------------------------------------------------------------------------------------


def inspect(
    model: Annotated[Path, typer.Argument(help="The directory that fit wrote.")],
    data: Annotated[
        Path | None, typer.Option(help="The table that the model was fitted with: needed to measure gains.")
    ] = None,
    target: Annotated[str | None, typer.Option(help="The column of labels in it. Default: as in fit.")] = None,
    agent: Annotated[str | None, typer.Option(help="The column of agents in it. Default: as in fit.")] = None,
    folds: Annotated[int, typer.Option(help="Number of parts of each agent's rows, to measure gains.", min=2)] = 5,
    seed: Seed = 0,
    figures: Annotated[Path | None, typer.Option(help="Draw figures, too, and write them to this folder.")] = None,
    html: Annotated[
        Path | None, typer.Option(help="Write the report to this file, too, as a page for a browser.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Report on a model: gains of the agents, features that differ, outliers, and the choices of the fit."""
    if data is None and target is not None:
        raise ParameterError("--target is a column of a table: name the table with --data")
    if figures is not None:
        check_writable(figures)
    if html is not None:
        check_path(html)
    fitted = load(model)
    if not hasattr(fitted, "report"):
        raise ParameterError(f"{model} holds a {type(fitted).__name__}, which has no report; estimators have")
    rows: dict[str, Any] = {}
    if data is not None:
        target = target or fitted._given_names.get("target")
        if target is None:
            raise ParameterError("the model does not know its column of labels: name it with --target")
        _, X, ids, y = _rows_for(fitted, data, agent, target)
        rows = {"X": X, "y": y, "agents": ids}
    with waiting("measuring gains", as_json):
        report = fitted.report(html, folds=folds, random_state=seed, **rows)
    written = [] if figures is None else write_figures(_figures(fitted, report), figures)
    if as_json:
        show(report.to_dict() | {"figures": written, "html": None if html is None else str(html)}, "", as_json)
        return
    print(report)
    if html is not None:
        talk.print(f"report: {html}")
    if written:
        talk.print(f"figures: {', '.join(written)}")


def _figures(model: Any, report: Any) -> dict[str, Any]:
    """Return the figures of a model: gains, shrinkage of coefficients, and the column that differs most."""
    found = {} if report.gains is None else {"gains.png": plots.gains(report)}
    if report.features is None or report.outliers is None:
        return found
    if report.gains is not None and model._models.rows() is not None:
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
