"""A charter in an admin's words: options of ``coterie group create``, and columns of a model fitted on sample rows."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, NamedTuple, Union, get_args, get_origin

import msgspec

from ..._files import Where
from ...errors import DataError, ParameterError
from .charter import FITTED, Charter, Curves, Encoding, Network

#: Families of a fitted model that peers can learn by gossip, by the loss of that name.
FAMILIES = ("squared", "logistic")


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


def from_model(path: Where) -> dict[str, Any]:
    """Fields of a charter from a model that ``coterie fit`` has saved: columns, levels, means, knots, classes and loss.

    All of them were learned from the sample rows, and become public.
    """
    from ...estimators.storage import load
    from ..model.cells import spelt

    model = load(path)
    described, arrays = model._packed()
    if not described:
        raise DataError(
            f"{path} holds a {type(model).__name__}, whose columns peers do not know: fit one with coterie fit, "
            "without --method boosting"
        )
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
        fields["loss"] = family
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


# -- options ---------------------------------------------------------------------------------------------------------


class Words(msgspec.Struct, kw_only=True):
    """Options of ``coterie group create`` that are not fields of a charter, or not as they are typed.

    Parameters
    ----------
    features : str, optional
        Columns that models see, with commas between them: numbers, or text with its levels, such as
        age,city=paris|rome|oslo; a ? after it adds a column that says where there are gaps.
    sample : path, optional
        In place of --features: a model that coterie fit has written, of sample rows. Its columns, levels, means, knots
        and classes become public.
    classes : str, optional
        The negative and the positive class, such as no,yes. Without: numbers.
    model : path, optional
        Learn the model that this Python file makes (its function model() returns it): each member brings the same file.
        The charter holds names and sizes of its parameters, no code.
    settings : list of str, optional
        A further argument of the method, name=value; repeat it. Boosting: stumps, beta, and low and high, the public
        range of the features. Networks: rate, steps and batch of SGD; optimiser=adam.
    learn : bool
        The members learn who collaborates with whom.
    lam : float, optional
        For --learn: the larger, the more edges. Default: 1.
    kappa : int, optional
        For --learn: how many members to ask at a time. Default: 3.
    every : float, optional
        For --learn: wakes, of anybody, between two updates. Default: 10.
    max_weight : float, optional
        For --learn: no edge weighs more.
    epsilon : float, optional
        Privacy: the budget of each member.
    delta : float
        Privacy: delta.
    clip : float
        Privacy: gradients of an example are cut to this norm.
    row_norm : float
        Privacy: public bound on the norm of a row.
    releases : int, optional
        Privacy: releases that the budget is split for.
    ca_key : path, optional
        Key of a certificate authority to use.
    ca_certificate : path, optional
        Its certificate.
    """

    features: str | None = None
    sample: Path | None = None
    classes: str | None = None
    model: Path | None = None
    settings: list[str] | None = None
    learn: bool = False
    lam: float | None = None
    kappa: int | None = None
    every: float | None = None
    max_weight: float | None = None
    epsilon: float | None = None
    delta: float = 1e-5
    clip: float = 1.0
    row_norm: float = 1.0
    releases: int | None = None
    ca_key: Path | None = None
    ca_certificate: Path | None = None


#: All options of ``coterie group create``, in the order of its help; and those that are not called by their names.
OPTIONS = (
    *("target", "features", "sample", "classes", "method", "objective", "loss"),
    *("hidden", "model", "personal", "shared", "tied"),
    *("coupling", "ridge", "confidence", "max_rows", "settings"),
    *("learn", "lam", "kappa", "every", "max_weight"),
    *("epsilon", "delta", "clip", "row_norm", "releases"),
    *("trim", "radius", "rate"),
    *("center", "scale", "target_center", "target_scale", "title", "ca_key", "ca_certificate"),
)
FLAGS = {"sample": ("--from",), "settings": ("--set",), "learn": ("--learn",)}
#: Options of a network, those that are arguments of a graph rule, and those of a private method.
OF_NETWORK, OF_RULE = ("personal", "shared", "tied"), ("lam", "kappa", "every", "max_weight")
OF_PRIVACY = ("epsilon", "delta", "clip", "row_norm", "releases")


class Option(NamedTuple):
    """What is known of an option."""

    kind: Any
    default: Any  # ... if it has to be given
    help: str


def options() -> dict[str, Option]:
    """The options of ``coterie group create``: types, defaults and texts are those of the fields that they set."""
    found = {}
    for record in (Network, Charter, Words):  # the last one that has a name counts
        texts = dict(re.findall(r"^    (\w+) : .*\n((?: {8}.*\n)+)", record.__doc__ or "", re.MULTILINE))
        for field in msgspec.structs.fields(record):
            kind = field.type if record is Words else _typed(field.type)
            default = ... if field.required else field.default
            if field.name in FITTED or not isinstance(default, int | float | str | type(...)):
                kind, default = kind | None, None
            found[field.name] = Option(kind, default, " ".join(texts.get(field.name, "").split()))
    return {name: found[name] for name in OPTIONS}


def _typed(annotation: Any) -> Any:
    """What is typed for a field: a number where it is nothing else, and text."""
    plain = _plain(annotation)
    return plain.pop() if plain in ({int}, {float}) else str


def _plain(annotation: Any) -> set[Any]:
    if get_origin(annotation) is Annotated:
        return _plain(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        return set().union(*map(_plain, get_args(annotation)))
    return {annotation} - {NoneType, msgspec.UnsetType}


def fields_of(given: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of a charter from what was given for all of these options; None where nothing was."""
    features, sample, target, classes = (given[name] for name in ("features", "sample", "target", "classes"))
    if (features is None) == (sample is None):
        raise ParameterError("give either --features, the columns that models see, or --from, a fitted model")
    fields = from_model(sample) if sample is not None else declared(features)
    if sample is not None and target in fields["features"]:
        raise ParameterError(f"--target {target} is a feature of the model in {sample}: what was it fitted to predict?")
    if classes is not None and len(classes.split(",")) != 2:
        raise ParameterError(f"--classes {classes}: give two, the negative and the positive one, such as no,yes")
    if (given["ca_key"] is None) != (given["ca_certificate"] is None):
        raise ParameterError("--ca-key and --ca-certificate go together")
    said = {name: value for name, value in given.items() if value is not None}
    parsed: dict[str, Any] = {"settings": dict(_setting(one) for one in said.pop("settings", ()))}
    for name, otherwise in (("center", 0.0), ("scale", 1.0)):
        if name in said:
            parsed[name] = _of_features(f"--{name}", said[name], fields, otherwise)
    if "ridge" in said:
        parsed["ridge"] = _number(said["ridge"])
    if classes is not None:
        parsed["labels"] = [name.strip() for name in classes.split(",")]
    if said["learn"]:
        parsed["learned"] = {name: said[name] for name in OF_RULE if name in said}
    if "epsilon" in said:
        private = {name: said[name] for name in OF_PRIVACY if name in said}
        parsed["privacy"] = {{"releases": "wakes_per_agent"}.get(name, name): private[name] for name in private}
    if (network := _network(said)) is not None:
        parsed["network"] = network
    as_given = said.keys() & {*Charter.__struct_fields__} - {"features"}
    return fields | {name: said[name] for name in as_given} | parsed


def _number(text: str) -> Any:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return text


def _setting(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals:
        raise ParameterError(f"--set {text}: must be name=value")
    return name.strip(), _number(value.strip())


def _network(said: Mapping[str, Any]) -> dict[str, Any] | None:
    """What is said of a model that is not linear; None if nothing is."""
    named = {name: [part.strip() for part in said[name].split(",")] for name in OF_NETWORK if name in said}
    if "hidden" in said and "model" in said:
        raise ParameterError("--hidden and --model are two models: give one of them")
    if "hidden" in said or "model" in said:
        return named | ({"hidden": said["hidden"]} if "hidden" in said else {})
    if named:
        raise ParameterError(f"--{next(iter(named))} is for networks: give --hidden or --model")
    return None


def _of_features(option: str, text: str, fields: dict[str, Any], otherwise: float) -> list[float]:
    """A number for each feature, from one for each that is a number: in their order, or by name; text has its own."""
    features, columns = fields["features"], fields.get("columns")
    named = [name for j, name in enumerate(features) if columns is None or columns.kinds[j] == "number"]
    pairs = [part.rpartition("=") for part in text.split(",")]
    try:
        values = [float(value) for _, _, value in pairs]
    except ValueError:
        raise ParameterError(f"{option} {text}: must be numbers with commas between them") from None
    if any(equals for _, equals, _ in pairs):
        given = {name.strip(): value for (name, _, _), value in zip(pairs, values, strict=True)}
    elif len(values) == len(features):
        return values
    else:
        given = dict(zip(named, values, strict=False)) if len(values) == len(named) else {}
    if given.keys() != set(named):
        raise ParameterError(
            f"{option} {text}: must be a number for each feature that is one, which are {', '.join(named)}; text has "
            "none"
        )
    return [given.get(name, otherwise) for name in features]
