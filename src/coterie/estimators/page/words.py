"""The first sentences of a report's page."""

from __future__ import annotations

import math
from typing import Any

from ..report import MEASURES, number_in_words

#: Phrases for the models that learning together is compared with.
WHEN = {"alone": "alone", "one_model": "with one model for all"}
#: Beginning of the note that says why gains were not measured.
NO_GAINS = "gains are not available"


def explained(summary: dict[str, Any]) -> str:
    """Explain what an agent is and what is compared, to a reader who knows only the page."""
    column, target = summary.get("agent_column"), summary.get("target")
    if summary["agents"] == 1:
        return f"All rows belong to one agent: there is one model{f' to predict “{target}”' if target else ''}."
    whose = f"Each agent is one value of the column “{column}”" if column else "Each agent is a group of rows"
    what = f", and has a model of its own to predict “{target}”." if target else ", and has a model of its own."
    if "gains" not in summary:
        return whose + what + " What agents have in common was learned from all of them together."
    return (
        f"{whose}{what} These were learned together. They are compared with models that each agent learns alone, "
        "from its own rows only, and with one model for all, which ignores whose row it is. Errors are those on rows "
        "that were held out."
    )


def headline(report: Any, names: dict[Any, str]) -> list[dict[str, str]]:
    """Return sentences with their tones: "good", "bad" or "even" for gains, and "more" for other findings."""
    found = [_gain(report.summary, name) for name in report.summary.get("gains", {})]
    if not found:
        why = next((note for note in report.notes if note.startswith(NO_GAINS)), NO_GAINS).removeprefix(NO_GAINS)
        found = [{"tone": "even", "against": "", "text": f"Gains were not measured{why}."}]
    more = [text for text in (_features(report), _outliers(report, names)) if text]
    return found + [{"tone": "more", "against": "", "text": text} for text in more]


def _gain(summary: dict[str, Any], name: str) -> dict[str, str]:
    """Return the sentence on the gain of learning together over `name`."""
    gain, errors, measure = summary["gains"][name], summary["errors"], MEASURES[summary["measure"]]
    before, after = number_in_words(errors[name]), number_in_words(errors["together"])
    ends = [end / errors[name] if errors[name] > 0.0 else math.nan for end in (gain["low"], gain["high"])]
    known = all(map(math.isfinite, ends))
    tone = "even" if not known else "good" if ends[0] > 0.0 else "bad" if ends[1] < 0.0 else "even"
    gained = f"{round(gain['share'] * gain['agents']):,} of {gain['agents']:,} agents have a smaller error."
    if tone == "even":
        sure = (
            f"; the gain may be anything from {_percent(ends[0])} to {_percent(ends[1])} (95 % interval)"
            if known
            else ""
        )
        text = f"On average over agents, the {measure} is {after} together, and {before} {WHEN[name]}{sure}. {gained}"
    else:
        size, verb = _percent(abs(gain["relative"])), "falls" if tone == "good" else "rises"
        low, high = (abs(end) for end in (ends if tone == "good" else ends[::-1]))
        sure = f"(95 % interval {_percent(low)} to {_percent(high)})"
        text = (
            f"On average over agents, the {measure} {verb} from {before} {WHEN[name]} to {after} together: by {size} "
            f"{sure}. {gained}"
        )
    return {"tone": tone, "against": name, "text": text.replace("95 %", "95\N{NO-BREAK SPACE}%")}


def _features(report: Any) -> str:
    table = report.features
    if table is None or "class" in table or not len(table) or not math.isfinite(table["importance"][0]):
        return ""
    first = table.iloc[0]
    if report.summary["agents"] == 1 or first["importance"] <= 0.0 or math.isinf(first["high"]):
        return ""
    what = "their levels (the intercept)" if first["feature"] == "intercept" else f"“{first['feature']}”"
    return f"Agents differ most in {what}: {_percent(float(first['importance']))} of the differences between them."


def _outliers(report: Any, names: dict[Any, str]) -> str:
    if report.outliers is None:
        return ""
    found = list(dict.fromkeys(names[agent] for agent in report.outliers["agent"]))
    if not found:
        return "No agent stands out from what the population explains."
    shown = found if len(found) <= 5 else found[:4]
    rest = f" and {len(found) - 4:,} more" if len(found) > 5 else ""
    if len(found) == 1:
        return f"1 agent stands out: {found[0]}."
    return f"{len(found):,} agents stand out: {', '.join(shown)}{rest}."


def _percent(share: float) -> str:
    value = 100.0 * share
    text = f"{value:.0f}" if abs(value) >= 9.95 else f"{value:.1f}"
    return f"{text}\N{NO-BREAK SPACE}%".replace("-", "\N{MINUS SIGN}")
