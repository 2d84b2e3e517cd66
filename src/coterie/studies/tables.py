"""Tables of means with standard errors, as text and as LaTeX."""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass
from itertools import groupby
from numbers import Number
from typing import Any

import numpy as np
import pandas as pd

#: Special characters of TeX, and their escapes.
_SPECIAL = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
} | {sign: f"\\{sign}" for sign in "&%$#_{}"}


@dataclass(frozen=True, repr=False, eq=False)
class StudyTable:
    """Means over seeds with their standard errors. Prints as text; see :meth:`to_latex`.

    Attributes
    ----------
    mean, error : DataFrame
        Tables of equal shape. The error of a single seed is NaN.
    best : DataFrame of bool
        Whether each mean is the best of its row or column.
    """

    mean: pd.DataFrame
    error: pd.DataFrame
    best: pd.DataFrame

    @property
    def text(self) -> pd.DataFrame:
        """The table as text, ``mean ± standard error``."""
        return self._cells(latex=False)

    def _cells(self, latex: bool) -> pd.DataFrame:
        rows = [
            [
                cell(self.mean.iat[i, j], self.error.iat[i, j], latex, latex and bool(self.best.iat[i, j]))
                for j in range(self.mean.shape[1])
            ]
            for i in range(self.mean.shape[0])
        ]
        return pd.DataFrame(rows, index=self.mean.index, columns=self.mean.columns, dtype=object)

    def to_latex(self, caption: str | None = None, label: str | None = None) -> str:
        r"""Return the table as LaTeX, for package ``booktabs``: best values in bold, errors after a plus-minus sign.

        Parameters
        ----------
        caption, label : str, optional
            If one of them is given, the result is a floating ``table``, otherwise only a ``tabular``.

        Returns
        -------
        str

        Examples
        --------
        >>> import coterie as ct
        >>> found = ct.studies.study(lambda mu, seed: {"accuracy": mu + seed / 100}, {"mu": [0.5, 0.6]}, seeds=range(2))
        >>> print(found.table().to_latex())
        \begin{tabular}{rr}
        \toprule
        mu & accuracy \\
        \midrule
        0.5 & $0.5050 \pm 0.0050$ \\
        0.6 & $\mathbf{0.6050} \pm 0.0050$ \\
        \bottomrule
        \end{tabular}
        """
        cells = self._cells(latex=True)
        index, depth = cells.index, cells.index.nlevels
        numeric = [index.get_level_values(k).dtype.kind in "iuf" for k in range(depth)]
        form = "".join("r" if number else "l" for number in numeric) + "r" * cells.shape[1]
        names = [escape(name if name is not None else "") for name in index.names]
        lines = [f"\\begin{{tabular}}{{{form}}}", "\\toprule"]
        lines += [*_above(cells.columns, depth), _line(names + _last(cells.columns)), "\\midrule"]
        for key, row in zip(index, cells.itertuples(index=False), strict=True):
            lines.append(_line([*map(escape, key if depth > 1 else (key,)), *row]))
        lines += ["\\bottomrule", "\\end{tabular}"]
        if caption is not None or label is not None:
            head = ["\\begin{table}", "\\centering"]
            head += [] if caption is None else [f"\\caption{{{escape(caption)}}}"]
            head += [] if label is None else [f"\\label{{{label}}}"]
            lines = [*head, *lines, "\\end{table}"]
        return "\n".join(lines)

    def __repr__(self) -> str:
        return self.text.to_string()


def _above(columns: pd.Index, depth: int) -> list[str]:
    """Return the head without its last line: the only setting's name, or values of all settings but the last."""
    if columns.nlevels == 1:
        groups = [] if columns.name is None else [[(escape(columns.name), len(columns))]]
    else:
        groups = [_runs(columns, level) for level in range(columns.nlevels - 1)]
    lines = []
    for group in groups:
        ends = (depth + np.cumsum([count for _, count in group])).tolist()
        lines.append(_line([""] * depth + [f"\\multicolumn{{{count}}}{{c}}{{{text}}}" for text, count in group]))
        rules = [f"\\cmidrule(lr){{{end - count + 1}-{end}}}" for end, (_, count) in zip(ends, group, strict=True)]
        lines.append(" ".join(rules))
    return lines


def _runs(columns: pd.Index, level: int) -> list[tuple[str, int]]:
    """Return the headings of one level of the columns, each with the number of neighbouring columns it spans."""
    runs = groupby(columns, key=lambda key: key[: level + 1])
    return [(_setting(columns.names[level], key[level]), len(list(same))) for key, same in runs]


def _last(columns: pd.Index) -> list[str]:
    if columns.nlevels == 1:
        return [escape(name) for name in columns]
    return [_setting(columns.names[-1], key[-1]) for key in columns]


def _setting(name: Hashable, value: Any) -> str:
    """Return the value of a setting; a number is preceded by the setting's name."""
    return escape(f"{name} = {value}" if isinstance(value, Number) else value)


def _line(cells: list[str]) -> str:
    return " & ".join(cells) + r" \\"


def escape(value: Hashable) -> str:
    """Return a value as TeX shows it."""
    return "".join(_SPECIAL.get(sign, sign) for sign in str(value))


def cell(mean: float, error: float, latex: bool = False, bold: bool = False) -> str:
    """Return a mean with its standard error; the mean has as many digits as the error's first two require."""
    if math.isnan(mean):
        return "--" if latex else "-"
    if not math.isfinite(mean):
        return (r"$\infty$" if mean > 0 else r"$-\infty$") if latex else str(mean)
    size = max(abs(mean), error if math.isfinite(error) else 0.0)
    power = math.floor(math.log10(size)) if size > 0.0 else 0
    power = power if power >= 6 or power < -3 else 0  # as a factor of both
    known = math.isfinite(error) and error > 0.0
    if known:
        digits = min(max(0, 1 - math.floor(math.log10(error / 10.0**power))), 12)
        value, after = f"{mean / 10.0**power:.{digits}f}", f"{error / 10.0**power:.{digits}f}"
    else:
        value, after = f"{mean / 10.0**power:.4g}", "0" if error == 0.0 else ""
    sign = r"\pm" if latex else "±"
    value = f"\\mathbf{{{value}}}" if bold else value
    said = f"{value} {sign} {after}" if after else value
    if power:
        said = f"({said})" if after else said
        said += f" \\times 10^{{{power}}}" if latex else f"e{power:+03d}"
    return f"${said}$" if latex else said


def which_are_best(mean: pd.DataFrame, along_rows: bool, higher: dict[Any, bool]) -> pd.DataFrame:
    """Return which numbers are the best of a row or column; `higher` is, for each column, whether more is better."""
    signed = mean * [1.0 if higher[name] else -1.0 for name in mean.columns]
    top = signed.max(axis=1) if along_rows else signed.max(axis=0)
    alone = mean.shape[1] == 1 if along_rows else mean.shape[0] == 1
    return signed.eq(top, axis=0 if along_rows else 1) & (not alone)
