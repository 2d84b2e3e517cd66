"""Without PyTorch, a model of it says what to install."""

from __future__ import annotations

import sys

import pytest

import coterie as ct


def test_a_missing_torch_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ct.errors.MissingExtra, match=r'pip install "coterie\[torch\]"'):
        ct.models.Torch(None, None)
