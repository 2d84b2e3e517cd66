"""Texts as counts of their words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import numpy as np

from .sources import Arrays

__all__ = ["bag_of_words"]

#: A word is a feature if it is in so many reviews.
LEAST_REVIEWS = 10


def bag_of_words(reviews: Iterable[Counter[str]]) -> Arrays:
    """Counts, 255 at most, of the words of enough reviews, as a CSR matrix with columns in the order of the words."""
    reviews = list(reviews)
    met = Counter(word for words in reviews for word in words)
    kept = sorted(word for word, times in met.items() if times >= LEAST_REVIEWS)
    column = {word: k for k, word in enumerate(kept)}
    rows = [sorted((column[word], count) for word, count in words.items() if word in column) for words in reviews]
    entries = np.array([entry for row in rows for entry in row], dtype=np.int64).reshape(-1, 2)
    return {
        "X_data": np.minimum(entries[:, 1], 255).astype(np.uint8),
        "X_indices": entries[:, 0].astype(np.int32),
        "X_indptr": np.cumsum([0, *map(len, rows)]).astype(np.int32),
        "X_shape": np.array([len(reviews), len(kept)], dtype=np.int64),
        "feature_names": np.array(kept, dtype=str),
    }
