"""Reader of LEAF's format (Caldas et al. 2018): folders ``train`` and ``test`` of json files.

Each file has ``users``, ``num_samples`` and, for each user in ``user_data``, rows ``x`` and labels ``y``.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..errors import DataError
from .originals import Originals, bag_of_words, stacked
from .sources import Arrays

__all__ = ["leaf"]

UserRows = list[tuple[str, Any, Any]]


def leaf(files: Originals) -> Arrays:
    """Return the arrays of a LEAF set. The content of the first row decides how all rows are encoded.

    Numbers (FEMNIST, synthetic, images as nested lists) are features, row by row. A string with the next character as
    label (Shakespeare) becomes a column for each character, whose values are indices in the alphabet of the training
    rows; other characters get the index after the last. A list that ends with a text (Sentiment140) becomes counts of
    words.
    """
    users: list[str] = []
    rows: UserRows = []
    sizes: list[int] = []
    for part in ("train", "test"):
        found = _users(files, part)
        users += found
        rows += [(user, x, y) for user, (x, y) in found.items()]
        sizes.append(sum(len(y) for _, y in found.values()))
    names = sorted(set(users))
    number = {name: k for k, name in enumerate(names)}
    agent = np.repeat([number[user] for user, _, _ in rows], [len(y) for _, _, y in rows])
    if not agent.size:
        raise DataError("the users of these files have no rows")
    return {
        **_encoding(rows)(rows, sizes[0]),
        "agent": agent.astype(np.int32),
        "split": np.repeat([0, 1], sizes).astype(np.int8),
        "agent_names": np.array(names),
    }


def _users(files: Originals, part: str) -> dict[str, tuple[Any, Any]]:
    """Return rows and labels of each user in one of the two folders."""
    found: dict[str, tuple[Any, Any]] = {}
    for file in files.inside(part, ".json"):
        try:
            data = json.loads(files.content(file))
            users, counts, rows = data["users"], data["num_samples"], data["user_data"]
            for user, count in zip(users, counts, strict=True):
                x, y = rows[user]["x"], rows[user]["y"]
                if not len(x) == len(y) == count:
                    raise ValueError(f"user {user!r} has {len(x)} rows, {len(y)} labels, and num_samples is {count}")
                if user in found:
                    raise ValueError(f"user {user!r} is there twice")
                found[str(user)] = _compact(x, np.float32), _compact(y, np.float64)
        except (ValueError, TypeError, KeyError) as error:
            what = f"no {error}" if isinstance(error, KeyError) else error
            raise DataError(f"{file} is not a file of LEAF: {what}") from error
    return found


def _compact(values: list[Any], dtype: type) -> Any:
    """Return numbers as an array, which takes a tenth of the memory of lists; return other values unchanged."""
    try:
        array = np.asarray(values)
    except ValueError:  # rows of different lengths
        return values
    with np.errstate(over="ignore"):  # infinities are refused later, with their row and column
        return array.astype(dtype) if len(values) and array.dtype.kind in "biuf" else values


def _encoding(rows: UserRows) -> Callable[[UserRows, int], Arrays]:
    """Return the function that encodes rows like the first one."""
    x, y = next((x[0], y[0]) for _, x, y in rows if len(y))
    if isinstance(x, str) and isinstance(y, str):
        return _messages
    if isinstance(x, list) and x and isinstance(x[-1], str):
        return _texts
    return _numbers


def _numbers(rows: UserRows, _: int) -> Arrays:
    for user, x, y in rows:
        if len(y) and not (isinstance(x, np.ndarray) and isinstance(y, np.ndarray)):
            raise DataError(
                f"user {user!r} has rows such as {str(x[0])[:40]!r} with label {str(y[0])[:20]!r}, expected numbers, "
                "as many in each row: encode names of image files and lists of tokens yourself, see ct.AgentData"
            )
        if len(y) and y.size != len(y):
            raise DataError(f"user {user!r} has labels such as {y[0].tolist()}, expected one number for each row")
    return stacked((f"user {user!r}", x, y) for user, x, y in rows if len(y))


def _messages(rows: UserRows, train: int) -> Arrays:
    texts = [text for _, x, _ in rows for text in x]
    labels = [label for _, _, y in rows for label in y]
    length = len(texts[0])
    wrong = [text for text in texts if not isinstance(text, str) or len(text) != length]
    wrong += [label for label in labels if not isinstance(label, str) or len(label) != 1]
    if wrong:
        raise DataError(
            f"found {wrong[0]!r}, expected texts of {length} characters, and one character as the label of each"
        )
    read, next_ = _code_points(texts).reshape(-1, length), _code_points(labels)
    alphabet = np.unique(np.concatenate([read[:train].ravel(), next_[:train]]))

    def place(points: np.ndarray) -> np.ndarray:
        found = np.searchsorted(alphabet, points)
        known = alphabet[np.minimum(found, alphabet.size - 1)] == points
        return np.where(known, found, alphabet.size)

    return {
        "X": place(read).astype(np.float32),
        "y": place(next_).astype(np.float64),
        "alphabet": np.array([chr(point) for point in alphabet]),
    }


def _code_points(texts: Sequence[str]) -> np.ndarray:
    return np.frombuffer("".join(texts).encode("utf-32-le", errors="surrogatepass"), dtype="<u4")


def _texts(rows: UserRows, _: int) -> Arrays:
    for user, x, y in rows:
        if not all(isinstance(row, list) and row and isinstance(row[-1], str) for row in x):
            raise DataError(f"user {user!r} has rows that do not end with a text, unlike other users")
        if len(y) and not isinstance(y, np.ndarray):
            raise DataError(f"user {user!r} has labels such as {str(y[0])[:20]!r}, expected numbers")
    words = bag_of_words(Counter(re.findall(r"[\w']+", row[-1].lower())) for _, x, _ in rows for row in x)
    if not words["feature_names"].size:
        raise DataError("no word occurs in ten texts: there are too few texts to count words")
    return {**words, "y": np.array([label for _, _, y in rows for label in y], dtype=np.float64)}
