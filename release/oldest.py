"""The oldest dependencies that pyproject.toml allows, for pip: ``pip install -r <(python release/oldest.py)``."""

from __future__ import annotations

from licences import direct

#: Extras whose oldest versions are tested together; the others are large (ray, torch) or only report elsewhere.
TESTED = {"", "polars", "pyarrow", "network", "privacy", "index"}


def pins() -> list[str]:
    """Every lower bound as the one version to take."""
    asked = [one for needs in direct(TESTED).values() for one in needs]
    return sorted(
        {f"{one.name}=={bound.version}" for one in asked for bound in one.specifier if bound.operator == ">="}
    )


if __name__ == "__main__":
    print("\n".join(pins()))
