"""The command ``python -m papers``."""

from __future__ import annotations

import json
import os
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any

import pandas as pd
import typer
from rich.markup import escape
from rich.table import Table

from coterie.cli import console
from coterie.cli.console import AsJson, out, talk
from coterie.engines.cluster import Cluster
from coterie.errors import MissingDataError, ParameterError
from coterie.observers import progress_bar

from ._catalogue import PAPERS, experiments, find
from ._claims import BETTER, REPRODUCED
from ._experiment import Experiment
from ._runner import OUTPUT, Outcome, reproduce

COLOURS = {REPRODUCED: "green", BETTER: "cyan"}


def main(
    name: Annotated[
        str | None,
        typer.Argument(help="An experiment such as dada-figure-1, a paper such as dada, or all.", show_default=False),
    ] = None,
    listed: Annotated[bool, typer.Option("--list", help="Print what there is.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="Small, in seconds, to see that it works.")] = False,
    output: Annotated[Path, typer.Option("--output", "-o", help="Where figures and numbers go.")] = OUTPUT,
    workers: Annotated[
        int | None,
        typer.Option(
            help="Processes at work; by default one for each core, or CPU of a cluster.", min=1, show_default=False
        ),
    ] = None,
    engine: Annotated[
        str | None,
        typer.Option(
            help="Work on a Ray cluster: its address such as 10.0.0.1:6379, auto, or ray for one on this machine.",
            show_default=False,
        ),
    ] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Forget what an earlier run had finished.")] = False,
    suffix: Annotated[str, typer.Option("--format", help="Of the figure: png, pdf or svg.")] = "png",
    as_json: AsJson = False,
) -> None:
    """A figure or table of a paper: our numbers beside the paper's, a figure, a json. Interrupted runs go on."""
    if listed:
        _list(as_json)
        return
    if name is None:
        raise ParameterError("say what to reproduce: an experiment, a paper, or all; --list prints what there is")
    chosen = find(name)
    wanted = workers or (1 if quick else os.cpu_count() or 1)
    cluster = None if engine is None else Cluster(None if engine == "ray" else engine, workers)
    said: list[dict[str, Any]] = []
    with nullcontext() if cluster is None else cluster.connect():  # once for all of them
        for experiment in chosen:
            try:
                outcome = _run(experiment, output, quick, wanted, fresh, as_json, cluster, suffix)
            except MissingDataError as error:
                if len(chosen) == 1:
                    raise
                talk.print(f"[yellow]left out:[/] {escape(str(error))}", soft_wrap=True)
                continue
            if as_json:
                said.append(json.loads(outcome.record.read_text()) | {"figure": str(outcome.figure)})
            else:
                _show(outcome)
    if as_json:
        print(json.dumps(said if len(chosen) > 1 else said[0], default=console.plain))


def _run(
    experiment: Experiment,
    output: Path,
    quick: bool,
    workers: int,
    fresh: bool,
    quiet: bool,
    engine: Cluster | None,
    suffix: str,
) -> Outcome:
    done = 0

    def count(pieces: int, known: int) -> None:
        nonlocal done
        done = pieces
        progress(pieces, known)

    try:
        with progress_bar(experiment.name, console=talk, quiet=quiet) as progress:
            return reproduce(
                experiment,
                output,
                quick=quick,
                workers=workers,
                fresh=fresh,
                engine=engine,
                suffix=suffix,
                progress=count,
            )
    except KeyboardInterrupt:
        talk.print(f"{done} finished pieces are kept in {escape(str(output / 'pieces'))}: the same command goes on")
        raise


def _list(as_json: bool) -> None:
    known = experiments().values()
    if as_json:
        print(
            json.dumps([{name: getattr(each, name) for name in ("name", "title", "minutes", "data")} for each in known])
        )
        return
    table = Table(title="Minutes are of one core, at full size; with --quick, seconds, once kernels are compiled")
    for heading in ("name", "what it shows", "minutes", "data"):
        table.add_column(heading, justify="right" if heading == "minutes" else "left", no_wrap=heading == "name")
    for paper, title in PAPERS.items():
        table.add_section()
        table.add_row(f"[bold]{paper}[/]", f"[dim]{escape(title)}[/]", "", "")
        for each in known:
            if each.paper == paper:
                table.add_row(each.name, escape(each.title), f"{each.minutes:g}", ", ".join(each.data))
    out.print(table)


def _show(outcome: Outcome) -> None:
    experiment = outcome.experiment
    if outcome.claims:
        table = Table(
            title=f"{experiment.name}: {escape(experiment.title)}",
            caption="± is a standard error"
            + ("; ? for a quick run is too small for a verdict" if outcome.quick else ""),
        )
        for heading in ("what", "paper", "ours", "verdict", "why"):
            table.add_column(heading)
        for claim in outcome.claims:
            colour = COLOURS.get(claim.verdict, "yellow")
            table.add_row(
                escape(claim.what),
                escape(claim.paper),
                claim.seen,
                f"[dim]{claim.verdict}?[/]" if outcome.quick else f"[{colour}]{claim.verdict}[/]",
                escape(claim.reason),
            )
        out.print(table)
    for title, frame in outcome.tables.items():
        out.print(_framed(title, frame))
    talk.print(
        f"{escape(str(outcome.figure))}, {escape(str(outcome.record))}; {outcome.seconds:.0f} s of one core",
        soft_wrap=True,
    )


def _framed(title: str, frame: pd.DataFrame) -> Table:
    table = Table(title=escape(title))
    shown = frame.reset_index() if frame.index.name or frame.index.nlevels > 1 else frame
    for name, column in shown.items():
        table.add_column(escape(str(name)), justify="right" if column.dtype.kind in "if" else "left")
    for values in shown.itertuples(index=False):
        table.add_row(*(_cell(value) for value in values))
    return table


def _cell(value: Any) -> str:
    return (
        f"{value:,.4g}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else escape(str(value))
    )


if __name__ == "__main__":
    app = typer.Typer(add_completion=False)
    app.command()(main)
    console.run(app)
