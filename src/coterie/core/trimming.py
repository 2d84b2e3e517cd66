"""How many extremes are left out: shared by whatever trims."""

from __future__ import annotations

from .compile import inline, or_numpy

#: A part of neighbours that is a whole number but for rounding, is one.
ROUNDING = 1e-9


@inline
def trimmed_count(fraction, neighbours):
    """How many values to leave out at either end: one is always kept."""
    return min(int(fraction * neighbours + ROUNDING), max(0, neighbours - 1) // 2)


@or_numpy(lambda values: values.sort())
@inline
def sort(values):
    """Bring a few numbers into their order, without allocating."""
    for i in range(1, values.shape[0]):
        value = values[i]
        k = i
        while k > 0 and values[k - 1] > value:
            values[k] = values[k - 1]
            k -= 1
        values[k] = value


@inline
def middle_of(values):
    """The median of numbers in their order."""
    n = values.shape[0]
    return 0.5 * (values[(n - 1) // 2] + values[n // 2])


@inline
def middle_and_width(values, scratch):
    """The median of numbers, sorted here, and the median of their distances from it."""
    n = values.shape[0]
    sort(values)
    middle = middle_of(values)
    for k in range(n):
        scratch[k] = abs(values[k] - middle)
    sort(scratch[:n])
    return middle, middle_of(scratch[:n])


@inline
def clip_far(values, widths, scratch):
    """Bring numbers, sorted here, no farther from their median than so many median distances from it."""
    middle, width = middle_and_width(values, scratch)
    for k in range(values.shape[0]):
        values[k] = min(max(values[k], middle - widths * width), middle + widths * width)


@inline
def trimmed_mean(values, low, high):
    """Mean of sorted values without so many of the smallest, and of the largest."""
    kept = values.shape[0] - low - high
    result = 0.0
    for k in range(low, values.shape[0] - high):
        result += values[k] / kept  # divided first: a mean of finite numbers is finite
    return result
