"""scikit-learn's protocol of an estimator, without importing scikit-learn: the import takes longer than a fit.

These estimators have parameters, tags and metadata requests like scikit-learn's own, so that clone, pipelines and
searches accept them; the parts of scikit-learn that these need are imported when they are used.
"""

from __future__ import annotations

import inspect
from typing import Any, ClassVar, Self

from ..errors import ParameterError


class Estimator:
    """Base class whose parameters are the arguments of ``__init__``, which only stores them."""

    _kind: str
    #: Metadata that may be routed to each method.
    _routed: ClassVar[dict[str, tuple[str, ...]]] = {
        "fit": ("agents", "sample_weight"),
        "partial_fit": ("agents", "sample_weight"),
        "predict": ("agents",),
        "score": ("agents", "sample_weight"),
    }

    @classmethod
    def _parameters(cls) -> list[str]:
        return [name for name in inspect.signature(cls.__init__).parameters if name != "self"]

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the parameters by name; if ``deep``, also the parameters of parameters that are estimators."""
        found = {}
        for name in self._parameters():
            value = found[name] = getattr(self, name)
            if deep and hasattr(value, "get_params") and not isinstance(value, type):
                found |= {f"{name}__{inner}": part for inner, part in value.get_params().items()}
        return found

    def set_params(self, **parameters: Any) -> Self:
        """Set parameters by name."""
        nested: dict[str, dict[str, Any]] = {}
        for key, value in parameters.items():
            name, _, inner = key.partition("__")
            if name not in self._parameters():
                raise ParameterError(
                    f"Invalid parameter {name!r} for estimator {self!r}. Valid parameters are: {self._parameters()!r}."
                )
            if inner:
                nested.setdefault(name, {})[inner] = value
            else:
                setattr(self, name, value)
        for name, inside in nested.items():
            getattr(self, name).set_params(**inside)
        return self

    def __repr__(self) -> str:
        defaults = inspect.signature(type(self).__init__).parameters
        changed = [
            f"{name}={value!r}"
            for name, value in self.get_params(deep=False).items()
            if not _same(value, defaults[name].default)
        ]
        return f"{type(self).__name__}({', '.join(changed)})"

    def __sklearn_tags__(self) -> Any:
        from sklearn.utils import ClassifierTags, InputTags, RegressorTags, Tags, TargetTags

        return Tags(
            estimator_type=self._kind or None,
            target_tags=TargetTags(required=True),
            classifier_tags=ClassifierTags() if self._kind == "classifier" else None,
            regressor_tags=RegressorTags() if self._kind == "regressor" else None,
            input_tags=InputTags(sparse=True, allow_nan=getattr(self, "missing", "fill") == "fill"),
        )

    # -- metadata routing: set_fit_request(agents=True) and the like ----------------------------------------------

    def get_metadata_routing(self) -> Any:
        """Return scikit-learn's request of metadata for each method."""
        from copy import deepcopy

        from sklearn.utils.metadata_routing import MetadataRequest

        if hasattr(self, "_metadata_request"):
            return deepcopy(self._metadata_request)
        request = MetadataRequest(owner=self)
        for method, names in self._routed.items():
            for name in names:
                getattr(request, method).add_request(param=name, alias=None)
        return request

    def _request(self, method: str, asked: dict[str, Any]) -> Self:
        request = self.get_metadata_routing()
        for name, alias in asked.items():
            if name not in self._routed[method]:
                raise TypeError(f"{method} takes {', '.join(self._routed[method])}, not {name!r}")
            getattr(request, method).add_request(param=name, alias=alias)
        self._metadata_request = request
        return self

    def set_fit_request(self, **asked: Any) -> Self:
        """Set which metadata are passed on to :meth:`fit`: ``set_fit_request(agents=True)``."""
        return self._request("fit", asked)

    def set_partial_fit_request(self, **asked: Any) -> Self:
        """Set which metadata are passed on to ``partial_fit``."""
        return self._request("partial_fit", asked)

    def set_predict_request(self, **asked: Any) -> Self:
        """Set which metadata are passed on to ``predict``."""
        return self._request("predict", asked)

    def set_score_request(self, **asked: Any) -> Self:
        """Set which metadata are passed on to ``score``."""
        return self._request("score", asked)


def _same(value: Any, default: Any) -> bool:
    return value is default or (
        type(value) is type(default) and isinstance(value, (str, int, float)) and value == default
    )
