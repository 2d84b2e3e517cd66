"""Commands of real datasets: ``coterie data list``, ``check`` and ``convert``."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from ..datasets.convert import FORMATS
from ..datasets.convert import convert as convert_originals
from ..datasets.sources import SOURCES, Source, content_digest, find, folders, raw, read_arrays
from ..errors import DataError
from .console import BAD_INPUT, AsJson, bar, columns, show, talk, waiting

app = typer.Typer(
    no_args_is_help=True, help="Real datasets: list them, check their files, and convert their originals."
)


@app.command("list")
def list_datasets(as_json: AsJson = False) -> None:
    """List every dataset with a loader, and the place of its file. Files are not read."""
    found = [_described(source) for source in SOURCES.values()]
    heads = columns("name", "what, agents x features x rows, licence, citation, origin", "file", overflow="fold")
    table = Table(*heads, title=f"Datasets, looked for in {escape(', '.join(map(str, folders())))}", show_lines=True)
    for line in found:
        size = f"{line['agents']:,} x {line['features']:,} x {line['rows']:,}"
        what = f"{escape(line['title'])}\n{size}\n[dim]licence:[/] {escape(line['licence'])}"
        where = escape(str(line["file"])) if line["file"] else "[yellow]missing[/]"
        origin = f"[dim]cite:[/] {escape(line['citation'])}\n[dim]from:[/] {escape('; or '.join(line['originals']))}"
        table.add_row(line["name"], f"{what}\n{origin}", where)
    show({"folders": [str(folder) for folder in folders()], "datasets": found}, table, as_json)
    if not as_json and any(line["file"] is None for line in found):
        talk.print("coterie data convert NAME PATH... makes a missing file from its originals")


def _described(source: Source) -> dict[str, Any]:
    names = ("name", "title", "agents", "features", "rows", "licence", "citation", "originals", "digest")
    known = {name: getattr(source, name) for name in names}
    return known | {"file": find(source.name), "convert": source.command}


@app.command()
def check(as_json: AsJson = False) -> None:
    """Read every dataset file that is found, and verify its content."""
    found: list[dict[str, Any]] = []
    there = [(source, path) for source in SOURCES.values() if (path := find(source.name)) is not None]
    with bar("reading datasets", as_json) as progress:
        for source, path in there:
            progress(len(found), len(there))
            line: dict[str, Any] = {"name": source.name, "file": str(path), "good": True, "problem": None}
            try:
                raw(source.name)
                # Other zip libraries write the same arrays as other bytes, which is fine.
                line["same_bytes"] = hashlib.sha256(path.read_bytes()).hexdigest() == source.sha256
            except DataError as error:
                line |= {"good": False, "problem": str(error)}
            found.append(line)
    heads = columns("name", "file", "content", overflow="fold")
    table = Table(*heads, title=f"{len(found)} of {len(SOURCES)} datasets found")
    for line in found:
        content = "good" if line["good"] else f"[red]{escape(str(line['problem']))}[/]"
        table.add_row(line["name"], escape(line["file"]), content)
    if not found and not as_json:
        talk.print(f"none was found in {escape(', '.join(map(str, folders())))}: see coterie data list")
    show({"files": found, "missing": [name for name in SOURCES if find(name) is None]}, table, as_json)
    if not all(line["good"] for line in found):
        raise typer.Exit(BAD_INPUT)


@app.command()
def convert(
    name: Annotated[
        str, typer.Argument(help=f"One of {', '.join(SOURCES)}; or the format of a benchmark, {' or '.join(FORMATS)}.")
    ],
    paths: Annotated[list[Path], typer.Argument(help="The original files, or folders or archives with them.")],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="A folder. Default: in the user's cache, where loaders look for it."),
    ] = None,
    called: Annotated[
        str | None,
        typer.Option(
            "--name", help=f"Name of a set in the format of {' or '.join(FORMATS)}. Default: the format's name."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Convert the original public files of a dataset, and verify the result.

    A set in the format of LEAF or PFLlib has no published digest to compare with: the digest of the result is shown.
    """
    with waiting(f"reading and verifying {name}", as_json):
        path = convert_originals(name, paths, output, called)
    digest = SOURCES[name].digest if name in SOURCES else content_digest(read_arrays(path))
    done = "verified" if name in SOURCES else f"content digest {digest}"
    show({"name": name, "file": str(path), "digest": digest}, f"{done}: {escape(str(path))}", as_json)
