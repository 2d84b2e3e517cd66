"""Grouped data: the estimators at their defaults beside what people use.

python benchmarks/grouped.py [--seeds 3] [--sets a,b] [--split inside|unseen] [--details] [--json FILE] [--earlier FILE]

Two splits: 70 % of each group's rows train (inside), or 70 % of the groups (unseen). Everybody gets the same columns:
one-hot, standardised by the training rows, without those that depend on others there. Scores are root mean squared
errors of numbers and log-losses of classes on the test rows, means over seeds. A ratio is ours over the best
alternative's, which is picked anew for each set and split, by its test score. Every fit runs in a process of its own,
on one thread, with a time limit; times are CPU seconds of fits.
"""

import argparse
import json
import multiprocessing
import os
import time
import warnings

import numpy as np
from rich.console import Console
from rich.table import Table
from scipy import linalg, sparse
from sklearn.linear_model import LogisticRegression, Ridge, RidgeCV
from sklearn.model_selection import KFold
from threadpoolctl import threadpool_limits

import coterie as ct
from grouped_sets import HELD_OUT, RECIPES, Grouped, inside_groups

SHARE = 0.7
ALPHAS = np.logspace(-3, 3, 7)
#: Random slopes of more columns than these are not tried, nor more interactions than those.
MOST_SLOPES, MOST_INTERACTIONS = 30, 20_000
CLIP = 1e-6


class UnfitError(Exception):
    """A rival that does not apply."""


# Rivals. Each takes rows and returns what predicts: numbers, or one row of probabilities for each row.


def ours(X, y, g, kind, _):
    model = (ct.CollaborativeRegressor if kind == "number" else ct.CollaborativeClassifier)()
    model.fit(X, y, agents=g)
    return lambda X, g: model.predict(X, agents=g) if kind == "number" else model.predict_proba(X, agents=g)


def linear(A, y, kind, classes, folds=5, alphas=ALPHAS):
    """Ridge or logistic regression, the penalty chosen by folds (dense ridge: by leaving out one row)."""

    def fit(alpha, rows):
        if kind == "number":
            return Ridge(alpha, solver="lsqr", tol=1e-6).fit(A[rows], y[rows])
        return LogisticRegression(C=1 / alpha, max_iter=500).fit(A[rows], y[rows])

    def predict(model, A):
        if kind == "number":
            return model.predict(A)
        out = np.zeros((A.shape[0], classes))
        out[:, model.classes_] = model.predict_proba(A)
        return out

    every = np.arange(len(y))
    if len(y) < 2 or (kind == "class" and len(np.unique(y)) == 1):
        constant = y.mean() if kind == "number" else (np.bincount(y, minlength=classes) + 1) / (len(y) + classes)
        return lambda A: np.repeat([constant], A.shape[0], axis=0)
    if kind == "number" and not sparse.issparse(A):
        return RidgeCV(alphas).fit(A, y).predict
    totals = []
    for alpha in alphas:
        total = 0.0
        for rows, held in KFold(min(folds, len(y)), shuffle=True, random_state=0).split(every):
            if kind == "class" and len(np.unique(y[rows])) == 1:
                total += len(held) * np.log(classes)
                continue
            missed = loss(kind, y[held], predict(fit(alpha, rows), A[held]))
            total += len(held) * (missed**2 if kind == "number" else missed)
        totals.append(total)
    model = fit(alphas[int(np.argmin(totals))], every)
    return lambda A: predict(model, A)


def alone(X, y, g, kind, classes):
    models = {k: linear(X[g == k], y[g == k], kind, classes, 3, ALPHAS[1::2]) for k in np.unique(g)}
    return each(models, kind, classes)


def each(models, kind, classes):
    def predict(X, g):
        out = np.empty(len(g)) if kind == "number" else np.empty((len(g), classes))
        for k in np.unique(g):
            out[g == k] = models[k](X[g == k])
        return out

    return predict


def pooled(X, y, g, kind, classes):
    model = linear(X, y, kind, classes)
    return lambda X, g: model(X)


def one_hot(g, names):
    place = np.searchsorted(names, g).clip(max=len(names) - 1)
    known = np.flatnonzero(names[place] == g)
    return sparse.csr_matrix((np.ones(len(known)), (known, place[known])), (len(g), len(names)))


def with_groups(X, y, g, kind, classes):
    names = np.unique(g)

    def design(X, g):
        return sparse.hstack([sparse.csr_matrix(X), one_hot(g, names)]).tocsr()

    model = linear(design(X, g), y, kind, classes)
    return lambda X, g: model(design(X, g))


def with_interactions(X, y, g, kind, classes):
    names = np.unique(g)
    if len(names) * X.shape[1] > MOST_INTERACTIONS:
        raise UnfitError("too many interactions")

    def design(X, g):
        H = one_hot(g, names)
        return sparse.hstack([sparse.csr_matrix(X), H, *(H.multiply(column[:, None]) for column in X.T)]).tocsr()

    model = linear(design(X, g), y, kind, classes)
    return lambda X, g: model(design(X, g))


def varying(X, g):
    """Columns that vary inside groups: only these can have random slopes."""
    order = np.argsort(g, kind="stable")
    starts = np.flatnonzero(np.append(True, np.diff(g[order]) > 0))
    spread = np.maximum.reduceat(X[order], starts) - np.minimum.reduceat(X[order], starts)
    columns = np.flatnonzero(spread.max(axis=0) > 1e-9)
    if len(columns) == 0 or len(columns) > MOST_SLOPES:
        raise UnfitError(f"{len(columns)} random slopes")
    return columns


def mixed(slopes):
    def fit(X, y, g, kind, _):
        from statsmodels.regression.mixed_linear_model import MixedLM

        if kind != "number":
            raise UnfitError("numbers only")
        columns = varying(X, g) if slopes else []
        center, scale = y.mean(), y.std()

        def effects(X):
            return np.column_stack([np.ones(len(X)), X[:, columns]])

        with_ones = np.column_stack([np.ones(len(X)), X])
        model = MixedLM((y - center) / scale, with_ones, groups=g, exog_re=effects(X)).fit()
        personal = {k: np.asarray(b) for k, b in model.random_effects.items()}
        nobody = np.zeros(1 + len(columns))

        def predict(X, g):
            B = np.array([personal.get(k, nobody) for k in g])
            latent = np.column_stack([np.ones(len(X)), X]) @ model.fe_params + np.sum(effects(X) * B, axis=1)
            return center + scale * latent

        return predict

    return fit


def gpboost(slopes):
    def binary(X, y, g, likelihood, columns):
        import gpboost as gpb

        extra = {}
        if len(columns):
            extra = {"group_rand_coef_data": X[:, columns], "ind_effect_group_rand_coef": [1] * len(columns)}
        model = gpb.GPModel(group_data=g, likelihood=likelihood, num_parallel_threads=1, **extra)
        model.fit(y=y, X=np.column_stack([np.ones(len(X)), X]))

        def predict(X, g):
            slopes = {"group_rand_coef_data_pred": X[:, columns]} if len(columns) else {}
            return model.predict(group_data_pred=g, X_pred=np.column_stack([np.ones(len(X)), X]), **slopes)["mu"]

        return predict

    def fit(X, y, g, kind, classes):
        columns = varying(X, g) if slopes else []
        if kind == "number":
            center, scale = y.mean(), y.std()
            model = binary(X, (y - center) / scale, g, "gaussian", columns)
            return lambda X, g: center + scale * model(X, g)
        return one_against_rest(lambda y: binary(X, y, g, "bernoulli_logit", columns), y, classes)

    return fit


def one_against_rest(fit, y, classes):
    if classes == 2:
        model = fit(y.astype(float))
        return lambda X, g: np.column_stack([1 - model(X, g), model(X, g)])
    models = [fit((y == k).astype(float)) for k in range(classes)]

    def predict(X, g):
        q = np.column_stack([model(X, g) for model in models])
        return q / q.sum(axis=1, keepdims=True)

    return predict


def gpboost_trees(X, y, g, kind, classes):
    import gpboost as gpb

    def boosted(y, likelihood, objective):
        model = gpb.GPModel(group_data=g, likelihood=likelihood, num_parallel_threads=1)
        settings = {"objective": objective, "learning_rate": 0.05, "verbose": -1, "num_threads": 1}
        booster = gpb.train(settings, gpb.Dataset(X, y), gp_model=model, num_boost_round=100)
        return lambda X, g: booster.predict(X, group_data_pred=g, pred_latent=False)["response_mean"]

    if kind == "number":
        center, scale = y.mean(), y.std()
        model = boosted((y - center) / scale, "gaussian", "regression_l2")
        return lambda X, g: center + scale * model(X, g)
    return one_against_rest(lambda y: boosted(y, "bernoulli_logit", "binary"), y, classes)


def trees(X, y, kind, classes, **more):
    import lightgbm

    model = (lightgbm.LGBMRegressor if kind == "number" else lightgbm.LGBMClassifier)(n_jobs=1, verbose=-1)
    model.fit(X, y, **more)

    def predict(X):
        if kind == "number":
            return model.predict(X)
        out = np.zeros((len(X), classes))
        out[:, model.classes_] = model.predict_proba(X)
        return out

    return predict


def lightgbm_category(X, y, g, kind, classes):
    model = trees(np.column_stack([X, g]), y, kind, classes, categorical_feature=[X.shape[1]])
    return lambda X, g: model(np.column_stack([X, g]))


def lightgbm_alone(X, y, g, kind, classes):
    names, size = np.unique(g, return_counts=True)
    if np.median(size) < 40:
        raise UnfitError("fewer than 40 rows in most groups")
    models = {}
    for k, m in zip(names, size, strict=True):
        rows = g == k
        few = m < 40 or (kind == "class" and len(np.unique(y[rows])) == 1)
        models[k] = linear(X[rows], y[rows], kind, classes) if few else trees(X[rows], y[rows], kind, classes)
    return each(models, kind, classes)


RIVALS = {
    "coterie": (ours, "coterie"),
    "alone": (alone, "sklearn"),
    "pooled": (pooled, "sklearn"),
    "pooled + groups": (with_groups, "sklearn"),
    "pooled + interactions": (with_interactions, "sklearn"),
    "MixedLM intercepts": (mixed(False), "statsmodels"),
    "MixedLM slopes": (mixed(True), "statsmodels"),
    "GPBoost intercepts": (gpboost(False), "gpboost"),
    "GPBoost slopes": (gpboost(True), "gpboost"),
    "GPBoost trees": (gpboost_trees, "gpboost"),
    "LightGBM + groups": (lightgbm_category, "lightgbm"),
    "LightGBM alone": (lightgbm_alone, "lightgbm"),
}
#: Nobody's model fits a group without rows.
PERSONAL = ("alone", "LightGBM alone")


def loss(kind, y, predicted):
    """Root mean squared error, or log-loss."""
    if kind == "number":
        return float(np.sqrt(np.mean((y - predicted) ** 2)))
    chosen = predicted[np.arange(len(y)), y] / predicted.sum(axis=1)
    return float(-np.mean(np.log(np.clip(chosen, CLIP, 1))))


def split(data, how, seed):
    """A mask of training rows."""
    rng = np.random.default_rng(seed)
    if how == "inside":
        return inside_groups(data.groups, SHARE, rng)
    names = rng.permutation(np.unique(data.groups))
    return np.isin(data.groups, names[: round(SHARE * len(names))])


def prepared(X, train):
    """Return the common columns of all contestants: standardised, and independent on the training rows."""
    spread = X[train].std(axis=0)
    keep = spread > 1e-9 * (1 + np.abs(X[train].mean(axis=0)))
    Z = (X[:, keep] - X[train][:, keep].mean(axis=0)) / spread[keep]
    if Z.shape[1] < min(train.sum(), 300):
        _, R, order = linalg.qr(Z[train], mode="economic", pivoting=True)
        diagonal = np.abs(np.diag(R))
        Z = Z[:, np.sort(order[diagonal > 1e-7 * diagonal[0]])]
    return Z


def run(rival, Z, data, train, limit):
    """Score, error of classes and CPU seconds of one fit, in a process of its own; or why there is none."""
    classes = 0 if data.kind == "number" else int(data.y.max()) + 1

    def work(pipe):
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 1)
        os.dup2(quiet, 2)
        warnings.simplefilter("ignore")
        try:
            start = time.process_time()
            predict = rival(Z[train], data.y[train], data.groups[train], data.kind, classes)
            cpu = time.process_time() - start
            predicted = np.asarray(predict(Z[~train], data.groups[~train]))
            y = data.y[~train]
            wrong = float(np.mean(predicted.argmax(axis=1) != y)) if classes else None
            pipe.send({"score": loss(data.kind, y, predicted), "error": wrong, "cpu": cpu})
        except UnfitError as reason:
            pipe.send({"unfit": str(reason)})
        except Exception as error:
            pipe.send({"failed": f"{type(error).__name__}: {error}"})

    context = multiprocessing.get_context("fork")
    here, there = context.Pipe()
    process = context.Process(target=work, args=(there,))
    process.start()
    there.close()
    try:
        result = here.recv() if here.poll(limit) else {"failed": f"more than {limit:g} s"}
    except EOFError:
        result = {"failed": "crashed"}
    process.kill()
    process.join()
    if "score" in result and not np.isfinite(result["score"]):
        return {"failed": "not finite"}
    return result


def measured(data, how, seeds, limit, rivals):
    found = {}
    for name in rivals:
        if how == "unseen" and name in PERSONAL:
            found[name] = {"unfit": "says nothing about unseen groups"}
            continue
        results = []
        for seed in range(seeds):
            train = split(data, how, seed)
            results.append(run(RIVALS[name][0], prepared(data.X, train), data, train, limit))
            if "score" not in results[-1]:
                break
        if "score" not in results[-1]:
            found[name] = results[-1]
            continue
        means = {key: [r[key] for r in results if r[key] is not None] for key in results[0]}
        found[name] = {key: float(np.mean(values)) if values else None for key, values in means.items()}
    return found


def best(found):
    others = {name: r["score"] for name, r in found.items() if name != "coterie" and "score" in r}
    return min(others, key=others.get)


def installed(console):
    there = []
    for name, (_, package) in RIVALS.items():
        try:
            __import__(package)
            there.append(name)
        except ImportError:
            console.print(f"{name} is left out: {package} is not installed")
    return there


def warm(rivals):
    """Everything is imported before anything is timed."""
    rng = np.random.default_rng(0)
    X, g = rng.normal(size=(60, 2)), np.arange(60) % 6
    data = Grouped("warm", "number", X, X[:, 0] + g + 0.1 * rng.normal(size=60), g)
    for name in rivals:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                RIVALS[name][0](data.X, data.y, data.groups, "number", 0)
        except Exception:
            continue


def show(console, how, results):
    table = Table(title=f"{how}: ours over the best alternative, below 1 is better")
    left = ("set", "score", "best alternative")
    for column in ("set", "rows", "groups", "columns", "score", "ours", left[-1], "", "ratio", "CPU s", "its CPU s"):
        table.add_column(column, justify="left" if column in left else "right")
    ratios = {}
    for r in results:
        other, mine = best(r[how]), r[how]["coterie"]
        if "score" not in mine:
            table.add_row(r["name"], *map(str, r["sizes"]), "", mine["failed"], other, f"{r[how][other]['score']:.4g}")
            continue
        ratios[r["name"]] = mine["score"] / r[how][other]["score"]
        table.add_row(
            r["name"],
            *(f"{n:,}" for n in r["sizes"]),
            "RMSE" if r["kind"] == "number" else "log-loss",
            f"{mine['score']:.4g}",
            other,
            f"{r[how][other]['score']:.4g}",
            f"{ratios[r['name']]:.3f}",
            f"{mine['cpu']:.2f}",
            f"{r[how][other]['cpu']:.2f}",
        )
    console.print(table)
    if ratios:
        worst = max(ratios, key=ratios.get)
        mean = np.exp(np.mean(np.log(list(ratios.values()))))
        console.print(
            f"{how}: geometric mean {mean:.3f} of {len(ratios)} sets; worst {ratios[worst]:.3f} ({worst}); "
            f"at most 1 on {sum(v <= 1 for v in ratios.values())}\n"
        )
    rows = Table(title=f"{how}: each over the best of all but ours, over all sets")
    for column in ("", "sets", "failed", "geometric mean", "worst", "best or as good", "CPU s, median", "CPU s, total"):
        rows.add_column(column, justify="left" if not column else "right")
    for name in RIVALS:
        fitted = [r[how] for r in results if "score" in r[how].get(name, {})]
        if not fitted:
            continue
        relative = np.array([found[name]["score"] / found[best(found)]["score"] for found in fitted])
        cpu = np.array([found[name]["cpu"] for found in fitted])
        failed = sum("failed" in r[how].get(name, {}) for r in results)
        first = sum(found[name]["score"] <= found[best(found)]["score"] for found in fitted)
        mean = np.exp(np.log(relative).mean())
        numbers = (f"{mean:.3f}", f"{relative.max():.3f}", f"{first}", f"{np.median(cpu):.2f}", f"{cpu.sum():.1f}")
        rows.add_row(name, str(len(fitted)), str(failed), *numbers)
    console.print(rows)


def details(console, how, results):
    for r in results:
        console.print(f"{r['name']} ({r['kind']}; rows, groups, columns: {', '.join(map(str, r['sizes']))}), {how}")
        reference = r[how][best(r[how])]["score"]
        for name, x in sorted(r[how].items(), key=lambda item: item[1].get("score", np.inf)):
            if "score" not in x:
                reason = x.get("unfit") or x["failed"]
                console.print(f"    {name:22s} {reason[:90]}", markup=False, highlight=False)
                continue
            wrong = "" if x["error"] is None else f"   error {x['error']:.4f}"
            text = f"    {name:22s} {x['score']:10.5g}   {x['score'] / reference:6.3f}   {x['cpu']:7.2f} s{wrong}"
            console.print(text, markup=False, highlight=False)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3, help="splits of each kind")
    parser.add_argument("--sets", help="names, with commas between them")
    parser.add_argument("--held-out", action="store_true", help="the sets that are kept for the end")
    parser.add_argument("--split", choices=("inside", "unseen"), help="only this one")
    parser.add_argument("--limit", type=float, default=60.0, help="seconds for one fit")
    parser.add_argument("--details", action="store_true", help="every rival on every set")
    parser.add_argument("--json", help="write everything here")
    parser.add_argument(
        "--earlier", help="a file of --json with as many seeds: rivals are as there, only ours is measured"
    )
    arguments = parser.parse_args()
    console = Console(width=150)
    rivals = installed(console)
    threadpool_limits(1)
    warm(rivals)
    splits = (arguments.split,) if arguments.split else ("inside", "unseen")
    before = {}
    if arguments.earlier:
        with open(arguments.earlier) as file:
            before = {r["name"]: r for r in json.load(file) if r.get("seeds") == arguments.seeds}
    results = []
    for recipe in HELD_OUT if arguments.held_out else RECIPES:
        if arguments.sets and recipe.name not in arguments.sets.split(","):
            continue
        try:
            data = recipe.load()
        except (ImportError, ct.errors.CoterieError) as error:
            console.print(f"{recipe.name} is left out: {recipe.origin} is not there ({type(error).__name__})")
            continue
        result = {
            "name": recipe.name,
            "origin": recipe.origin,
            "kind": data.kind,
            "sizes": data.sizes,
            "seeds": arguments.seeds,
        }
        for how in splits:
            known = before.get(recipe.name, {}).get(how, {})
            missing = [name for name in rivals if name == "coterie" or name not in known]
            result[how] = known | measured(data, how, arguments.seeds, arguments.limit, missing)
        results.append(result)
        if arguments.details:
            for how in splits:
                details(console, how, [result])
        if arguments.json:
            with open(arguments.json, "w") as file:
                json.dump(results, file, indent=1)
    for how in splits:
        show(console, how, results)


if __name__ == "__main__":
    main()
