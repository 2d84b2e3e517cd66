"""How much communication it takes: coordinate descent and DJAM against ADMM, whatever its rho.

python benchmarks/convergence.py [--quick] [--json FILE] [--figure FILE]

CD, Section 5, Figure 1   linear classification, n = p = 100, 10 to 100 rows, logistic loss, CD (3) with mu = 1;
                          all start from the models trained alone; (Q - Q*) / Q* after 20,000 vectors.
DJAM, Section IV, Fig. 1  field estimation, n = 30 agents with one measurement each, Huber loss, DJAM (1);
                          exchanges and vectors until |Theta - Theta*| / |Theta*| is 1e-6, and 1e-8.

The initial swap of models counts. The best ADMM is that of the whole grid, known only afterwards, or the one that finds
its own rho.
"""

import argparse
import json
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

import coterie as ct

#: Vectors that CD and ADMM may send.
VECTORS = 20_000
#: CD's suboptimality must be below this part of that of the best ADMM.
MUCH_BETTER = 0.15
#: Relative errors to reach in the field, and how many times as many exchanges as the best ADMM DJAM may take.
ERRORS = (1e-6, 1e-8)
ON_PAR = 2.5
#: Exchanges after which a run is given up.
PATIENCE = 40_000


def admms(grid, steps=0):
    """ADMM with each rho of a grid, and with its own."""
    how = f", {steps} gradient steps" if steps else ", exact"
    named = {f"ADMM rho={rho:.3g}{how}": ct.CollaborativeADMM(rho, steps) for rho in grid}
    return {**named, f"ADMM rho=auto{how}": ct.CollaborativeADMM("auto", steps)}


def best(scores):
    """The ADMM with the lowest mean score."""
    return min((name for name in scores if name.startswith("ADMM")), key=lambda name: np.mean(scores[name]))


# -- CD against ADMM --------------------------------------------------------------------------------------------------


def classification(seed):
    task = ct.datasets.linear_classification(n=100, p=100, seed=seed, rows=(10, 100))
    return ct.Problem.personalized(task.train, task.graph, loss="logistic", mu=1.0)


def suboptimalities(contestants, seeds):
    """(Q - Q*) / Q* against vectors: for each contestant, a curve for each seed."""
    curves = {name: [] for name in contestants}
    for seed in range(seeds):
        problem = classification(seed)
        least, local = problem.value(problem.solve()), problem.local()
        for name, method in contestants.items():
            run = ct.simulate(problem, method, vectors=VECTORS, every=VECTORS // 40, seed=seed, start=local)
            curves[name].append((run.trace["vectors"].to_numpy(), run.trace["value"].to_numpy() / least - 1.0))
    return curves


def descent_against_admm(quick):
    grid = 10.0 ** np.arange(-2.0, 0.1, 0.5 if quick else 0.25)
    contestants = {"CD": ct.CoordinateDescent(), **admms(grid, steps=10), **admms(grid)}
    curves = suboptimalities(contestants, seeds=1 if quick else 5)
    final = {name: [float(curve[-1]) for _, curve in runs] for name, runs in curves.items()}
    winner = best(final)
    ratio = float(np.mean(final["CD"]) / np.mean(final[winner]))
    table = Table(title=f"CD against ADMM: after {VECTORS:,} vectors, mean of {len(final['CD'])} runs")
    table.add_column("method")
    table.add_column("(Q - Q*) / Q*", justify="right")
    table.add_column("CD / this", justify="right")
    for name, values in final.items():
        mark = "  (best)" if name == winner else ""
        table.add_row(name + mark, f"{np.mean(values):.2e}", f"{np.mean(final['CD']) / np.mean(values):.3f}")
    table.caption = f"CD / best ADMM: {ratio:.3f}; target: below {MUCH_BETTER}"
    return table, {"suboptimality": final, "best": winner, "ratio": ratio, "reached": ratio < MUCH_BETTER}, curves


# -- DJAM against ADMM ------------------------------------------------------------------------------------------------


def until_close(problem, optimum, method, seed):
    """Run until the smallest of ERRORS: exchanges, vectors and relative errors, every 10 exchanges."""

    def error(theta):
        return float(np.linalg.norm(theta - optimum) / np.linalg.norm(optimum))

    close = {"observe": {"error": error}, "until": lambda theta: error(theta) <= min(ERRORS)}
    trace = ct.simulate(problem, method, wakes=PATIENCE, every=10, seed=seed, start="local", **close).trace
    return trace["wakes"].to_numpy(), trace["vectors"].to_numpy(), trace["error"].to_numpy()


def first(amounts, errors, goal):
    """How much it took until the error was small; infinity if it never was."""
    return float(amounts[np.argmax(errors <= goal)]) if np.any(errors <= goal) else np.inf


def djam_against_admm(quick):
    grid = 10.0 ** np.arange(-1.0, 0.51, 0.5 if quick else 0.125)
    contestants = {"DJAM": ct.DJAM(), **admms(grid)}
    fields, runs = (2, 1) if quick else (5, 2)
    curves = {name: [] for name in contestants}
    for instance in range(fields):
        problem = ct.datasets.field_estimation(seed=instance).problem()
        optimum = problem.solve()
        for name, method in contestants.items():
            curves[name] += [until_close(problem, optimum, method, seed) for seed in range(runs)]
    tables, report = [], {}
    for goal in ERRORS:
        took = {
            unit: {name: [first(run[k], run[2], goal) for run in them] for name, them in curves.items()}
            for k, unit in enumerate(("exchanges", "vectors"))
        }
        winner = best(took["exchanges"])
        ratios = {unit: float(np.mean(t["DJAM"]) / np.mean(t[winner])) for unit, t in took.items()}
        table = Table(title=f"DJAM against ADMM: until the relative error is {goal:.0e}, mean of {fields * runs} runs")
        table.add_column("method")
        for column in ("exchanges", "DJAM / this", "vectors", "DJAM / this"):
            table.add_column(column, justify="right")
        for name in curves:
            cells = []
            for unit in ("exchanges", "vectors"):
                mean = np.mean(took[unit][name])
                if np.isfinite(mean):
                    cells += [f"{mean:,.0f}", f"{np.mean(took[unit]['DJAM']) / mean:.2f}"]
                else:
                    cells += ["not always", ""]
            table.add_row(name + ("  (best)" if name == winner else ""), *cells)
        ratio = ratios["exchanges"]
        table.caption = f"DJAM / best ADMM, in exchanges: {ratio:.2f}; target: at most {ON_PAR}"
        tables.append(table)
        means = {unit: {name: float(np.mean(values)) for name, values in t.items()} for unit, t in took.items()}
        report[f"{goal:.0e}"] = {**means, "best": winner, "ratios": ratios, "reached": ratio <= ON_PAR}
    return tables, report, curves


# -- pictures ---------------------------------------------------------------------------------------------------------


def draw(path, descent, winner, djam, djam_winner):
    """Both races: CD and DJAM, the best rho, rho=auto, and the other rhos in grey."""
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4), layout="constrained")
    for name, runs in descent.items():
        values = np.mean([np.interp(np.linspace(0, VECTORS, 41), x, y) for x, y in runs], axis=0)
        _line(left, name, np.linspace(0, VECTORS, 41), values, winner)
    left.set(title="CD against ADMM", xlabel="vectors", ylabel="(Q - Q*) / Q*", yscale="log")
    for name, runs in djam.items():
        _, vectors, errors = runs[0]
        _line(right, name, vectors, errors, djam_winner)
    furthest = 2.5 * max(djam[name][0][1][-1] for name in ("DJAM", djam_winner))
    right.set(title="DJAM against ADMM, one run", xlabel="vectors", ylabel="|Theta - Theta*| / |Theta*|", yscale="log")
    right.set_xlim(0, furthest)
    for axes in (left, right):
        axes.legend(fontsize="small")
    figure.savefig(path)


def _line(axes, name, x, y, winner):
    named = name in ("CD", "DJAM", winner) or "auto" in name
    style = {"label": name, "linewidth": 2.0} if named else {"color": "0.85", "linewidth": 0.8, "zorder": 0}
    axes.plot(x, y, **style)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer instances and coarser grids of rho")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers to a file too")
    parser.add_argument("--figure", type=Path, metavar="FILE", help="draw error against vectors")
    arguments = parser.parse_args()
    console = Console(width=110)
    table, descent, descent_curves = descent_against_admm(arguments.quick)
    console.print(table)
    tables, djam, djam_curves = djam_against_admm(arguments.quick)
    for table in tables:
        console.print(table)
    if arguments.json:
        arguments.json.write_text(json.dumps({"descent": descent, "djam": djam}, indent=1) + "\n")
    if arguments.figure:
        goal = f"{min(ERRORS):.0e}"
        draw(arguments.figure, descent_curves, descent["best"], djam_curves, djam[goal]["best"])


if __name__ == "__main__":
    main()
