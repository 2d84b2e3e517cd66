"""What a steward says about columns: in words, or by a model that was fitted on sample rows."""

from __future__ import annotations

from os import PathLike
from typing import Any

from ...errors import DataError, ParameterError
from ..model.cells import spelt
from .charter import Curves, Encoding

#: Families of a fitted model that peers can learn by gossip, and the loss that stands for each.
FAMILIES = {"squared": "squared", "logistic": "logistic"}


def declared(text: str) -> dict[str, Any]:
    """Fields of a charter from words such as ``age,dose?,city=paris|rome|oslo``.

    A name is a number; levels make it text, the first of them the reference; a question mark adds a column that says
    where there is a gap. A value that is not listed counts as the reference, with a note, and so does a gap without the
    mark.

    Examples
    --------
    >>> declared("age, dose")
    {'features': ['age', 'dose']}
    >>> declared("age?,city=paris|rome")["columns"].parts
    [('value', None), ('missing', None), ('level', 'rome')]
    """
    features, kinds, source, parts, references = [], [], [], [], []
    for j, word in enumerate(text.split(",")):
        name, equals, levels = word.strip().partition("=")
        name, levels = name.strip(), levels.strip()
        flagged = (levels if equals else name).endswith("?")
        if flagged:
            name, levels = (name, levels[:-1]) if equals else (name[:-1].strip(), "")
        names = [level.strip() for level in levels.split("|")] if equals else []
        if equals and (len(names) < 2 or not all(names)):
            raise ParameterError(f"--features {word.strip()}: give two levels or more, such as {name}=paris|rome")
        features.append(name)
        kinds.append("category" if equals else "number")
        references.append(names[0] if equals else None)
        found: list[tuple[str, str | None]] = [("level", level) for level in names[1:]] if equals else [("value", None)]
        found += [("missing", None)] if flagged else []
        source += [j] * len(found)
        parts += found
    if len(parts) == len(features) and all(what == "value" for what, _ in parts):
        return {"features": features}
    fills, known = [None] * len(features), {"references": references} if any(references) else {}
    columns = Encoding(kinds=kinds, fills=fills, source=source, parts=parts, **known)  # type: ignore[arg-type]
    return {"features": features, "columns": columns}


def from_model(path: str | PathLike[str]) -> dict[str, Any]:
    """Fields of a charter from a model that ``coterie fit`` has saved: columns, levels, means, knots, classes and loss.

    All of them were learned from the sample rows, and become public.
    """
    from ...estimators.storage import load

    model = load(path)
    if not hasattr(model, "_packed"):
        raise DataError(
            f"{path} holds a {type(model).__name__}, whose columns peers do not know: fit one with coterie fit, "
            "without --method boosting"
        )
    described, arrays = model._packed()
    columns = described["columns"]
    if columns["input_names"] is None:
        raise DataError(f"{path}: the columns of this model have no names, and peers have tables: fit it on a frame")
    fields: dict[str, Any] = {}
    if hasattr(model, "classes_"):
        if len(model.classes_) != 2:
            raise DataError(f"{path}: a model of {len(model.classes_)} classes, and peers know two, or numbers")
        fields["labels"] = [spelt(label) for label in model.classes_.tolist()]
    if described["form"] != "linear":
        family = described["models"][0]["family"]
        if family not in FAMILIES:
            raise DataError(
                f"{path}: the family of this model is {family!r}, and peers learn by gossip those of "
                f"{' and '.join(FAMILIES)}: fit the sample with --loss squared, of counts their logarithms"
            )
        fields["loss"] = FAMILIES[family]
    used = sorted(set(columns["source"]))
    place = {j: k for k, j in enumerate(used)}
    fields["features"] = [columns["input_names"][j] for j in used]
    fields["columns"] = Encoding(
        kinds=[columns["kinds"][j] for j in used],
        fills=[columns["means"][j] for j in used],
        source=[place[j] for j in columns["source"]],
        parts=[(what, text) for what, text in columns["parts"]],
    )
    if described["form"] == "pooled":
        ends = arrays["0.design_lengths"].cumsum()
        knots = [arrays["0.design_knots"][end - length : end] for end, length in zip(ends, arrays["0.design_lengths"])]  # noqa: B905
        fields["design"] = Curves(
            mean=arrays["0.design_mean"].tolist(),
            scale=arrays["0.design_scale"].tolist(),
            knots=[(int(k), t.tolist()) for k, t in zip(arrays["0.design_bent"], knots, strict=True)],
        )
    return fields
