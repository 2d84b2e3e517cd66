"""``coterie audit``: attack a private method's messages."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer
from rich.table import Table

from ..privacy import Private
from ..privacy import audit as audit_messages
from .console import AUDIT_FAILED, AsJson, Seed, bar, columns, show


class Mechanism(StrEnum):
    """Distribution of the noise."""

    gaussian = "gaussian"
    laplace = "laplace"
    exponential = "exponential"


def audit(
    method: Annotated[str, typer.Option(help="cd, propagation, boosting or gossip-pooling.")] = "cd",
    epsilon: Annotated[float, typer.Option(help="Epsilon of the claimed budget, > 0.")] = 1.0,
    delta: Annotated[float, typer.Option(help="Delta of the claimed budget, in (0, 1).")] = 1e-5,
    mechanism: Annotated[Mechanism | None, typer.Option(help="Default: gaussian; exponential for boosting.")] = None,
    clip: Annotated[float, typer.Option(help="Norm to which an example's gradient is clipped.")] = 1.0,
    wakes_per_agent: Annotated[
        int | None, typer.Option(help="Number of releases over which the budget is split.")
    ] = None,
    features: Annotated[
        int, typer.Option(help="Length of a model, which is also the number of canaries in a run.")
    ] = 64,
    runs: Annotated[
        int | None, typer.Option(help="Number of runs in each scenario. Default: as many as the test needs.")
    ] = None,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Attack a private method's messages, and test whether they reveal more than the claimed budget allows."""
    noise = None if mechanism is None else mechanism.value
    private = Private(method, epsilon, delta, noise, clip, wakes_per_agent)
    with bar("auditing", as_json) as progress:
        result = audit_messages(private, features=features, runs=runs, seed=seed, progress=progress)
    heads = columns("scenario", right=("trials", "epsilon seen", "epsilon claimed"))
    table = Table(*heads, "the promise", title=repr(result))
    for name, lines in result.table.groupby("scenario", sort=False):
        row = lines.loc[(lines["leak"] - lines["claimed"]).idxmax()]
        broken = (
            f"broken: at epsilon {row['epsilon']:.3g} delta is at least {row['leak']:.3g}, not {row['claimed']:.3g}"
        )
        told = broken if row["leak"] > row["claimed"] else "not broken"
        table.add_row(name, f"{row['trials']:,}", f"{lines['lower'].max():.3g}", f"{result.plan.epsilon:g}", told)
    table.caption = "epsilon seen: by how often the attacker guesses right, epsilon is not below this"
    found = {"passed": result.passed, "method": repr(private), "epsilon_lower": result.epsilon_lower}
    show(found | {"table": result.table.to_dict(orient="records")}, table, as_json)
    if not result.passed:
        raise typer.Exit(AUDIT_FAILED)
