"""Names of encoded columns, and what was done to the columns of a table, in plain words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from .raw import Names, plain_name

#: What an encoded column holds: ("value", None), ("level", its text) or ("missing", None).
Part = tuple[str, str | None]


def titles_of(source: Sequence[int], parts: Sequence[Part], names: Names) -> list[str]:
    """Names of encoded columns, each once."""
    # A column of the input may be called "age missing" itself: its name goes first.
    taken = set(names or ())
    titles = []
    for j, (what, text) in zip(source, parts, strict=True):
        title = plain_name(j, names)
        if what != "value":
            title += " missing" if what == "missing" else f"={text}"
            while title in taken:
                title += "'"
            taken.add(title)
        titles.append(title)
    return titles


def number_note(gaps: int, rows: int, constant: bool, mean: float | None) -> str:
    """What was done to a column of numbers; nothing if it stays as it is."""
    if mean is None:
        return "all values missing, left out"
    if not gaps:
        return "constant, left out" if constant else ""
    if constant:
        return f"{gaps} of {rows} values missing, the others constant: only an indicator"
    return f"{gaps} of {rows} values missing, filled with the mean {mean:.6g}, and an indicator"


def level_note(kind: str, gaps: int, rows: int, levels: int, kept: Sequence[str], reference: str | None) -> str:
    """What was done to a column of text or categories."""
    if kind == "empty":
        return "all values missing, left out"
    if not kept:
        return number_note(gaps, rows, constant=True, mean=0.0)
    if reference is None:
        note = f"{kind}, {levels} levels, the {len(kept)} most frequent kept, reference: the others"
    else:
        note = f"{kind}, {levels} levels, reference {reference!r}"
    return f"{note}; {gaps} of {rows} values missing, a level of their own" if gaps else note


def copy_notes(
    notes: list[tuple[int, str]],
    copies: Mapping[int, int],
    source: Sequence[int],
    parts: Sequence[Part],
    titles: Sequence[str],
    names: Names,
) -> list[tuple[int, str]]:
    """The notes, by input column, with those on copies: one for a column of which nothing is left."""
    size = Counter(source)
    by_column: dict[int, list[int]] = {}
    for k in copies:
        by_column.setdefault(source[k], []).append(k)
    for j, copied in by_column.items():
        name = plain_name(j, names)
        originals = {source[copies[k]] for k in copied}
        gaps = [k for k in copied if parts[k][0] == parts[copies[k]][0] == "missing"]
        if len(copied) == size[j] and len(originals) == 1 and len(gaps) < size[j]:
            # What was done to it before plays no role any more.
            other = titles[copies[copied[0]]] if size[j] == 1 else plain_name(originals.pop(), names)
            notes = [note for note in notes if note[0] != j]
            notes.append((j, f"{name}: a copy of column {other}, left out"))
            continue
        for k in copied:
            if k in gaps:
                other = plain_name(source[copies[k]], names)
                notes.append((j, f"{name}: missing in the same rows as {other}, one indicator for both"))
            else:
                notes.append((j, f"{titles[k]}: a copy of column {titles[copies[k]]}, left out"))
    return notes
