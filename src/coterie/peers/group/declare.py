"""Making a charter from options of ``coterie group create``, and from a model fitted on sample rows."""

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

#: Families of a fitted model that peers can learn by gossip; each is also the name of a loss.
FAMILIES = ("squared", "logistic")


def declared(text: str) -> dict[str, Any]:
    """Return fields of a charter from a text such as ``age,dose?,city=paris|rome|oslo``.

    A name alone is a number. Levels make it text, and the first level is the reference. A question mark adds a column
    that marks gaps. An unlisted value counts as the reference, with a note, and so does a gap without the question
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
    """Return fields of a charter from a model saved by ``coterie fit``: columns, levels, means, knots, classes and
    loss.

    All of them were learned from the sample rows, and become public.
    """
    from ...estimators.storage import load
    from ..model.cells import spelt

    model = load(path)
    described, arrays = model._packed()
    if not described:
        raise DataError(
            f"{path} holds a {type(model).__name__}, whose columns peers cannot use: fit one with coterie fit, "
            "without --method boosting"
        )
    columns = described["columns"]
    if columns["input_names"] is None:
        raise DataError(f"{path}: the columns of this model have no names, which peers need: fit it on a frame")
    fields: dict[str, Any] = {}
    if hasattr(model, "classes_"):
        if len(model.classes_) != 2:
            raise DataError(f"{path}: a model of {len(model.classes_)} classes; peers learn two classes, or numbers")
        fields["labels"] = [spelt(label) for label in model.classes_.tolist()]
    if described["form"] != "linear":
        family = described["models"][0]["family"]
        if family not in FAMILIES:
            raise DataError(
                f"{path}: the family of this model is {family!r}, and peers learn by gossip only "
                f"{' and '.join(FAMILIES)}: fit the sample with --loss squared, for counts on their logarithms"
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


class CreateOptions(msgspec.Struct, kw_only=True):
    """Options of ``coterie group create`` that are not fields of a charter, or are typed in another form.

    Parameters
    ----------
    features : str, optional
        Columns that models see, with commas between them: numbers, or text with its levels, such as
        age,city=paris|rome|oslo; a ? after it adds a column that marks gaps.
    sample : path, optional
        In place of --features: a model that coterie fit has learned from sample rows. Its columns, levels, means, knots
        and classes become public.
    classes : str, optional
        The negative and the positive class, such as no,yes. Default: the target is a number.
    model : path, optional
        Learn the model that the function model() of this Python file returns. Each member brings the same file. The
        charter holds names and sizes of its parameters, no code.
    settings : list of str, optional
        A further argument of the method, name=value; repeat it. Boosting: stumps, beta, and low and high, the public
        range of the features. Networks: rate, steps and batch of SGD; optimiser=adam.
    learn : bool
        Let the members learn which of them collaborate.
    lam : float, optional
        With --learn: the larger, the more edges. Default: 1.
    kappa : int, optional
        With --learn: number of members to ask at a time. Default: 3.
    every : float, optional
        With --learn: wakes, of any member, between two updates. Default: 10.
    max_weight : float, optional
        With --learn: maximal weight of an edge.
    epsilon : float, optional
        Privacy: budget epsilon of each member.
    delta : float
        Privacy: delta of the budget.
    clip : float
        Privacy: norm to which the gradient of an example is clipped.
    row_norm : float
        Privacy: public bound on the norm of a row.
    releases : int, optional
        Privacy: number of releases over which the budget is split.
    ca_key : path, optional
        File of the key of a certificate authority to use.
    ca_certificate : path, optional
        File of the certificate of that authority.
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


#: All options of ``coterie group create``, in the order of its help; and options with other flags than their names.
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
#: Options of a network, arguments of a graph rule, and arguments of a private method.
OF_NETWORK, OF_RULE = ("personal", "shared", "tied"), ("lam", "kappa", "every", "max_weight")
OF_PRIVACY = ("epsilon", "delta", "clip", "row_norm", "releases")


class Option(NamedTuple):
    """Type, default and help text of an option."""

    kind: Any
    default: Any  # ... if it is required
    help: str


def options() -> dict[str, Option]:
    """Return the options of ``coterie group create``. Types, defaults and texts come from the fields that they set."""
    found = {}
    for record in (Network, Charter, CreateOptions):  # a later record overrides an earlier one
        texts = dict(re.findall(r"^    (\w+) : .*\n((?: {8}.*\n)+)", record.__doc__ or "", re.MULTILINE))
        for field in msgspec.structs.fields(record):
            kind = field.type if record is CreateOptions else _typed(field.type)
            default = ... if field.required else field.default
            if field.name in FITTED or not isinstance(default, int | float | str | type(...)):
                kind, default = kind | None, None
            found[field.name] = Option(kind, default, " ".join(texts.get(field.name, "").split()))
    return {name: found[name] for name in OPTIONS}


def _typed(annotation: Any) -> Any:
    """Return the type in which a field is typed: int, float, or str for anything else."""
    plain = _plain(annotation)
    return plain.pop() if plain in ({int}, {float}) else str


def _plain(annotation: Any) -> set[Any]:
    if get_origin(annotation) is Annotated:
        return _plain(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        return set().union(*map(_plain, get_args(annotation)))
    return {annotation} - {NoneType, msgspec.UnsetType}


def fields_of(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return fields of a charter from the values of all options; None for an option that is not given."""
    features, sample, target, classes = (given[name] for name in ("features", "sample", "target", "classes"))
    if (features is None) == (sample is None):
        raise ParameterError("give either --features, the columns that models see, or --from, a fitted model")
    fields = from_model(sample) if sample is not None else declared(features)
    if sample is not None and target in fields["features"]:
        raise ParameterError(f"--target {target} is a feature of the model in {sample}: name the column it predicts")
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
    """Return the fields of a network from its options, or None if there are none."""
    named = {name: [part.strip() for part in said[name].split(",")] for name in OF_NETWORK if name in said}
    if "hidden" in said and "model" in said:
        raise ParameterError("--hidden and --model are two models: give one of them")
    if "hidden" in said or "model" in said:
        return named | ({"hidden": said["hidden"]} if "hidden" in said else {})
    if named:
        raise ParameterError(f"--{next(iter(named))} is for networks: give --hidden or --model")
    return None


def _of_features(option: str, text: str, fields: dict[str, Any], otherwise: float) -> list[float]:
    """Return a number for each feature. Features that are numbers take theirs in order or by name; text gets
    `otherwise`.
    """
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
            f"{option} {text}: must be a number for each feature that is a number, which are {', '.join(named)}; text "
            "features have none"
        )
    return [given.get(name, otherwise) for name in features]
