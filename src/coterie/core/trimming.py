"""Trimmed means and medians of small arrays, and how many extremes are left out."""

from __future__ import annotations

from .compile import inline, or_numpy

#: Tolerance for rounding: a fraction of neighbours this close to an integer is that integer.
ROUNDING_TOLERANCE = 1e-9


@inline
def trimmed_count(fraction, neighbours):
    """Return how many values to leave out at either end, at most so many that one remains."""
    return min(int(fraction * neighbours + ROUNDING_TOLERANCE), max(0, neighbours - 1) // 2)


@or_numpy(lambda values: values.sort())
@inline
def sort(values):
    """Sort a few numbers, without allocating."""
    for i in range(1, values.shape[0]):
        value = values[i]
        k = i
        while k > 0 and values[k - 1] > value:
            values[k] = values[k - 1]
            k -= 1
        values[k] = value


@inline
def middle_of(values):
    """Return the median of sorted numbers."""
    n = values.shape[0]
    return 0.5 * (values[(n - 1) // 2] + values[n // 2])


@inline
def middle_and_width(values, scratch):
    """Sort the numbers; return their median, and the median of their distances from it."""
    n = values.shape[0]
    sort(values)
    middle = middle_of(values)
    for k in range(n):
        scratch[k] = abs(values[k] - middle)
    sort(scratch[:n])
    return middle, middle_of(scratch[:n])


@inline
def clip_far(values, widths, scratch):
    """Sort the numbers, and clip them to `widths` median distances from their median."""
    middle, width = middle_and_width(values, scratch)
    for k in range(values.shape[0]):
        values[k] = min(max(values[k], middle - widths * width), middle + widths * width)


@inline
def trimmed_mean(values, low, high):
    """Return the mean of sorted values without the `low` smallest and the `high` largest."""
    kept = values.shape[0] - low - high
    result = 0.0
    for k in range(low, values.shape[0] - high):
        result += values[k] / kept  # divide first: then a mean of finite numbers is finite
    return result
