"""PyTorch modules as models. Only this module imports torch, when a model is made."""

from __future__ import annotations

import copy
import functools
import hashlib
import importlib
import inspect
import logging
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple

import numpy as np

from .._checks import integer
from ..core.linear import matrix_of
from ..errors import DataError, MismatchError, MissingExtra, ParameterError
from .opaque import NO_DIE, Opaque, code_of

log = logging.getLogger("coterie")

#: Number of numbers, parameters, rows and activations, that one call for several agents is limited to.
NUMBERS_PER_CALL = 1 << 21
#: Number of rows that a module is tried on when it first gets data.
TRIAL_ROWS = 3


class Trial(NamedTuple):
    """Properties of a module and its loss, found by a trial on a few rows."""

    kind: Any  # dtype of the labels passed to the loss
    random: bool  # whether the module draws random numbers in training
    flat: bool  # whether a single output is passed to the loss as (m,)
    width: int  # numbers that are computed for a row


class Torch(Opaque):
    """A PyTorch module with a loss of its outputs and labels: a model for :meth:`coterie.Problem.differentiable`.

    The trained parameters of the module, in the order of ``module.named_parameters()`` and with these names, form one
    vector theta for each agent. The given module is copied, and never changed. All agents start from its parameters.

    Parameters
    ----------
    module : torch.nn.Module
        Maps rows (m, features) to one output for each row: (m,), (m, 1), (m, classes), or what the loss takes.
    loss : callable or torch.nn.Module
        A function of (outputs, labels), such as ``torch.nn.functional.cross_entropy``. A loss with an argument
        ``reduction`` is called with ``"none"``; any other loss must return one number for each row, which is checked
        on a few rows when a problem is made. f_i is the mean of these numbers over the agent's rows.
    dtype : "float64" or "float32"
        Precision of the computations of the module. The agents' parameters are always float64.
    device : str
        Device of the computations: ``"cpu"``, ``"cuda"``, ...
    labels : "auto", "numbers" or "classes"
        Whether labels are passed to the loss as floating-point numbers or as int64; "auto" tries both in this order.
    chunk : int, optional
        Largest number of agents in one call of the module. Default: depends on the size of the module and its rows.

    Notes
    -----
    Rounds (``simulate(rounds=)``) call the module once for all agents, with ``torch.func.vmap``; wakes call the module
    for one agent after the other. Results agree up to rounding. On the CPU, a run repeated on the same machine gives
    the same bits. Modules that ``vmap`` cannot take, such as ``torch.nn.LSTM`` or an ``if`` that depends on the rows,
    are called for one agent after the other in rounds, too, which takes longer; the log "coterie" reports this once.

    A module that draws random numbers in training (dropout) needs minibatches, whose random numbers are the seeds of
    the module, so that a run can be repeated. Rounds and wakes draw different numbers. Outside training, values,
    gradients and predictions are computed after ``module.eval()``.

    Modules with buffers that change in training are refused, because agents neither average nor send buffers.
    ``BatchNorm(..., track_running_stats=False)``, ``GroupNorm`` and ``LayerNorm`` have no such buffers; the first
    cannot take a single row. Parameters with ``requires_grad=False`` are not trained.

    Examples
    --------
    >>> import numpy as np
    >>> import pytest
    >>> import coterie as ct
    >>> torch = pytest.importorskip("torch")  # import torch
    >>> _ = torch.manual_seed(0)
    >>> net = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Tanh(), torch.nn.Linear(3, 2))
    >>> model = ct.models.Torch(net, torch.nn.functional.cross_entropy)
    >>> model
    Torch(Sequential, size=23)
    >>> list(model.parts)
    ['0.weight', '0.bias', '2.weight', '2.bias']
    >>> rng = np.random.default_rng(0)
    >>> data = ct.AgentData(rng.normal(size=(30, 4)), rng.integers(0, 2, 30), agents=np.arange(30) % 3)
    >>> problem = ct.Problem.differentiable(data, ct.graphs.ring(3), model, shared="0.", tied="2.")
    >>> run = ct.simulate(problem, ct.gossip.DPSGD(ct.optim.SGD(0.1, steps=5, batch=8)), rounds=4)
    >>> model.predict(run.theta[0], data.X).shape
    (30, 2)
    >>> model.module(run.theta[0])
    Sequential(...)
    """

    def __init__(
        self,
        module: Any,
        loss: Any,
        *,
        dtype: str = "float64",
        device: Any = "cpu",
        labels: str = "auto",
        chunk: int | None = None,
    ):
        torch = _torch()
        if not isinstance(module, torch.nn.Module):
            raise ParameterError(f"module must be a torch.nn.Module; found {type(module).__name__}")
        if dtype not in ("float32", "float64"):
            raise ParameterError(f'dtype={dtype!r} must be "float64" or "float32"')
        if labels not in ("auto", "numbers", "classes"):
            raise ParameterError(f'labels={labels!r} must be "auto", "numbers" or "classes"')
        trained = _trained(torch, module)
        self._given = copy.deepcopy(module)
        self._dtype, self._chunk = getattr(torch, dtype), None if chunk is None else integer("chunk", chunk, 1)
        try:
            self._device = torch.device(device)
            working = copy.deepcopy(module).to(self._device, self._dtype)
        except (
            RuntimeError,
            AssertionError,
            TypeError,
        ) as error:  # torch raises these for a device that is not available
            raise ParameterError(f"device={device!r} cannot be used: {error}") from error
        self._named_loss = loss
        self._loss = _row_loss(torch, loss, self._device, self._dtype)
        #: Whether the output is a logit for two classes, 0 and 1 or -1 and +1: an output >= 0 predicts class 1.
        self.logit = _takes_logits(torch, loss)
        self._shapes = {name: tuple(parameter.shape) for name, parameter in trained.items()}
        ends = np.cumsum([0, *[parameter.numel() for parameter in trained.values()]]).tolist()
        self.parts = {name: slice(a, b) for name, a, b in zip(trained, ends[:-1], ends[1:], strict=True)}
        self.size, self.inputs, self.classes = ends[-1], 0, 0
        parameters = torch.nn.utils.parameters_to_vector(trained.values())
        self._start = parameters.detach().cpu().double().numpy()
        self._training = _Flat(torch, working, list(trained))
        self._still = _Flat(torch, copy.deepcopy(working).eval(), list(trained))
        self._mixes = any(isinstance(part, torch.nn.modules.batchnorm._BatchNorm) for part in module.modules())
        self._labels = labels
        self._trial: Trial | None = None  # set when the module first gets rows
        #: Whether vmap cannot take the module; checked at the trial, so that a run does not depend on later calls.
        self._loops = False
        self._forget()

    def _forget(self) -> None:
        """Reset the attributes that cannot be sent to other processes."""
        self._lock = threading.Lock()
        self._kept: tuple[Any, Any, Any, Any] | None = None
        self._calls: dict[bool, tuple[Callable[..., Any], Callable[..., Any]]] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in ("_lock", "_kept", "_calls")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._training, self._still = (flat.again(list(self.parts)) for flat in (self._training, self._still))
        self._forget()

    def __repr__(self) -> str:
        return f"Torch({type(self._given).__name__}, size={self.size})"

    @property
    def random(self) -> bool:
        """Whether the module draws random numbers in training; False until the module has got data."""
        return self._trial is not None and self._trial.random

    @property
    def written(self) -> tuple[Any, ...]:
        """Values that identify the model: repr of the module, code of its forward pass, loss, and precision."""
        forward = code_of(type(self._given).forward)
        loss = self._named_loss
        shown = repr(loss) if loss.__class__.__module__.startswith("torch") else code_of(loss)
        return repr(self._given), forward, shown, str(self._dtype)

    def initial(self, seed: Any = 0) -> np.ndarray:
        """Return the parameters of the given module."""
        return self._start.copy()

    def module(self, theta: np.ndarray) -> Any:
        """Return a copy of the given module with the parameters `theta`.

        Parameters
        ----------
        theta : (size,) array_like

        Returns
        -------
        torch.nn.Module
        """
        torch, made = _torch(), copy.deepcopy(self._given)
        vector = _shared(self._checked(theta))
        parameters = dict(made.named_parameters())
        with torch.no_grad():
            for name, part in self.parts.items():
                parameters[name].copy_(vector[part].view(self._shapes[name]))
        return made

    def predict(self, theta: np.ndarray, X: Any) -> np.ndarray:
        """Return the outputs of the module for rows; a single output has shape (m,).

        Parameters
        ----------
        theta : (size,) array_like
        X : (m, features) array_like

        Returns
        -------
        ndarray
        """
        torch, theta = _torch(), self._checked(theta)
        rows = self._tensor(np.asarray(X.toarray() if hasattr(X, "toarray") else X, dtype=float))
        with self._lock, torch.no_grad(), self._normalising(len(rows)):
            self._still.load(theta)
            found = self._still.module(rows).cpu().double().numpy()
        return found[:, 0] if found.ndim == 2 and found.shape[1] == 1 else found

    def check(self, X: np.ndarray, y: np.ndarray) -> None:
        """Try the module and its loss on the first rows, refuse invalid ones, and store their properties."""
        if not y.shape[0]:
            return
        torch, some = _torch(), np.arange(TRIAL_ROWS) % y.shape[0]
        rows, labels = self._tensor(X[some]), self._tensor(y[some])
        with self._lock, torch.no_grad(), self._seeded(np.zeros(1)):
            outputs, width = self._try_module(torch, rows)
            before = [buffer.clone() for buffer in self._training.module.buffers()]
            dice = self._generator_state(torch)
            self._training.module(rows)
            random = not torch.equal(dice, self._generator_state(torch))
            changed = [
                name
                for (name, after), old in zip(self._training.module.named_buffers(), before, strict=True)
                if not torch.equal(after, old)
            ]
            if changed:
                raise ParameterError(_remembers(changed))
            kind, flat = self._try_loss(torch, outputs, labels)
            self.classes = int(outputs.shape[1]) if kind == torch.int64 and outputs.ndim == 2 else 0
            self._trial = Trial(kind, random, flat, width)
            self._try_vmap(torch, rows, labels.to(kind))

    def _try_module(self, torch: Any, rows: Any) -> tuple[Any, int]:
        """Return the outputs for a few rows, and about how many numbers are computed for each row."""
        seen: list[int] = []
        hooks = [
            part.register_forward_hook(
                lambda _part, _given, made: seen.append(made.numel() if torch.is_tensor(made) else 0)
            )
            for part in self._still.module.modules()
        ]
        try:
            self._still.load(self._start)
            before = self._generator_state(torch)
            outputs = self._still.module(rows)
            if not torch.equal(before, self._generator_state(torch)):
                raise ParameterError(
                    f"{self!r} draws random numbers also after module.eval(): its loss would not be a function of its "
                    "parameters. Let it draw them only where self.training is true, as torch.nn.Dropout does"
                )
        except (RuntimeError, IndexError, TypeError, ValueError) as error:
            if isinstance(error, ParameterError):
                raise
            raise DataError(f"{self!r} cannot take rows of {rows.shape[1]} features: {error}") from error
        finally:
            for hook in hooks:
                hook.remove()
        if not torch.is_tensor(outputs) or outputs.ndim == 0 or outputs.shape[0] != len(rows):
            found = f"shape {tuple(outputs.shape)}" if torch.is_tensor(outputs) else type(outputs).__name__
            raise ParameterError(f"{self!r} must give one output for each row: of {len(rows)} rows it gave {found}")
        return outputs, rows.shape[1] + sum(seen) // len(rows)

    def _try_loss(self, torch: Any, outputs: Any, labels: Any) -> tuple[Any, bool]:
        """Find how the loss returns one number per row: return the dtype of labels, and whether outputs are (m,)."""
        ways = [
            (self._dtype, labels, False),
            (self._dtype, labels, True),
            (torch.int64, torch.zeros_like(labels), False),
        ]
        ways = [way for way in ways if self._labels in ("auto", "classes" if way[0] == torch.int64 else "numbers")]
        said = []
        for kind, some, flat in ways:
            if flat and not (outputs.ndim == 2 and outputs.shape[1] == 1):
                continue
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # about broadcast labels, which the shape reveals
                    found = self._loss(outputs[:, 0] if flat else outputs, some.to(kind))
            except (RuntimeError, IndexError, TypeError, ValueError) as error:
                said.append(f"it refuses labels of {kind}: {str(error).splitlines()[0]}")
                continue
            if torch.is_tensor(found) and found.shape == (len(labels),):
                return kind, flat
            shape = f"shape {tuple(found.shape)}" if torch.is_tensor(found) else type(found).__name__
            said.append(f"with labels of {kind} it gave {shape}")
        raise ParameterError(
            f"the loss of {self!r} must give one number a row, shape ({len(labels)},), of outputs "
            f"{tuple(outputs.shape)} and labels {tuple(labels.shape)}: {'; '.join(said)}. "
            'Pass a loss such as torch.nn.functional.cross_entropy, or one with reduction="none"'
        )

    def _try_vmap(self, torch: Any, rows: Any, labels: Any) -> None:
        """Check whether vmap can call the module for two agents at once."""
        two = [
            torch.stack([each, each]) for each in (self._tensor(self._start), rows, labels, torch.ones_like(rows[:, 0]))
        ]
        why = ""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # repeated when the module is used
                for training in (False, True):
                    value, gradient = self._batched(torch, training)
                    value(*two)
                    with torch.enable_grad():
                        gradient(*two)
        except Exception as error:  # a module may raise anything when called with the tensors of vmap
            why = str(error).strip().partition("\n")[0] or type(error).__name__
        if why and not self._loops:
            log.info("%r is called for one agent after the other, as torch.func.vmap cannot take it: %s", self, why)
        self._loops = bool(why)

    def total(self, theta: np.ndarray, X: np.ndarray, y: np.ndarray) -> float:
        """Return the sum of the losses of the rows."""
        torch = _torch()
        self._met(X, y)
        with self._lock, torch.no_grad(), self._normalising(len(y)):
            self._still.load(theta)
            pieces = self._pieces(X, y)
            return float(
                sum(float(self._row_losses(self._still.module(rows), labels).sum()) for rows, labels in pieces)
            )

    def slope(self, theta: np.ndarray, X: np.ndarray, y: np.ndarray, die: float = NO_DIE) -> np.ndarray:
        """Return the gradient of :meth:`total`; with a nonnegative `die`, of the module in training."""
        torch = _torch()
        self._met(X, y)
        flat = self._still if die < 0.0 else self._training
        dice = self._seeded(np.array([die])) if self.random else nullcontext()
        with self._lock, torch.enable_grad(), dice, self._normalising(len(y)):
            flat.load(theta)
            flat.gradient.zero_()
            for rows, labels in self._pieces(X, y):
                self._row_losses(flat.module(rows), labels).sum().backward()
            return np.array(flat.gradient.cpu().numpy(), dtype=float)

    def _each(
        self, order: int, arrays: Any, theta: np.ndarray, who: np.ndarray, pick: Any = None, dice: Any = None
    ) -> np.ndarray:
        """Return values (order 0) or gradients (order 1) of the agents in `who`, with one call for each group."""
        torch = _torch()
        X, y = self._rows(arrays)
        if self._loops:
            return super()._each(order, arrays, theta, who, pick, dice)
        out = np.zeros((len(who), self.size) if order else len(who))
        start, sizes = arrays.row_start[who], arrays.row_start[np.asarray(who) + 1] - arrays.row_start[who]
        training = dice is not None
        with (
            self._lock,
            torch.set_grad_enabled(bool(order)),
            self._seeded(dice) if training and self.random else nullcontext(),
        ):
            call = self._batched(torch, training)[order]
            for group, most in self._groups(sizes if pick is None else np.where(sizes > 0, pick.shape[1], 0)):
                m, first, scale = sizes[group, None], start[group, None], arrays.row_weight[who[group], None]
                if pick is None:  # all rows; missing rows repeat the last row, with weight zero
                    turn = np.arange(most)[None]
                    rows, weight = first + np.minimum(turn, m - 1), np.where(turn < m, scale, 0.0)
                else:
                    rows, weight = pick[group], np.repeat(scale * m / most, most, axis=1)
                index = torch.from_numpy(rows).to(self._device)
                with self._normalising(most):
                    found = call(self._tensor(theta[group]), X[index], y[index], self._tensor(weight))
                out[group] = found.cpu().numpy()
        return out

    def _groups(self, sizes: np.ndarray) -> Iterator[tuple[np.ndarray, int]]:
        """Yield groups of agents with similar numbers of rows, and the largest number of rows of each group."""
        order = np.argsort(sizes, kind="stable")[::-1]
        order = order[sizes[order] > 0]
        while order.size:
            most = int(sizes[order[0]])
            least = most if self._mixes else 3 * most // 4
            count = max(1, NUMBERS_PER_CALL // (3 * self.size + most * self._known.width))
            count = count if self._chunk is None else self._chunk
            count = min(count, int(np.count_nonzero(sizes[order] >= least)))
            yield np.sort(order[:count]), most
            order = order[count:]

    def _batched(self, torch: Any, training: bool) -> tuple[Callable[..., Any], Callable[..., Any]]:
        """Return two functions for many agents at once: their weighted losses, and the gradients."""
        if training not in self._calls:
            module = (self._training if training else self._still).module

            def value(flat: Any, rows: Any, labels: Any, weight: Any) -> Any:
                mine = {name: flat[part].view(self._shapes[name]) for name, part in self.parts.items()}
                return weight @ self._row_losses(torch.func.functional_call(module, mine, (rows,)), labels)

            randomness = {"randomness": "different" if training and self.random else "error"}
            self._calls[training] = (
                torch.func.vmap(value, **randomness),
                torch.func.vmap(torch.func.grad(value), **randomness),
            )
        return self._calls[training]

    def _row_losses(self, outputs: Any, labels: Any) -> Any:
        return self._loss(outputs[:, 0] if self._known.flat else outputs, labels)

    def _rows(self, arrays: Any) -> tuple[Any, Any]:
        """Return the rows and labels of agents' arrays as tensors, cached for the next call."""
        if self._kept is None or self._kept[0] is not arrays.rows or self._kept[1] is not arrays.labels:
            X = matrix_of(arrays.rows, self.inputs)
            self._met(X, arrays.labels)
            self._kept = (arrays.rows, arrays.labels, self._tensor(X), self._label_tensor(arrays.labels))
        return self._kept[2:]

    @property
    def _known(self) -> Trial:
        assert self._trial is not None
        return self._trial

    def _met(self, X: np.ndarray, y: np.ndarray) -> None:
        if self._trial is None:
            self.check(X, y)

    def _pieces(self, X: np.ndarray, y: np.ndarray) -> Iterator[tuple[Any, Any]]:
        """Yield rows and labels as tensors, some at a time."""
        step = y.shape[0] if self._mixes else max(1, NUMBERS_PER_CALL // self._known.width)
        for a in range(0, y.shape[0], step):
            yield self._tensor(X[a : a + step]), self._label_tensor(y[a : a + step])

    def _tensor(self, array: np.ndarray) -> Any:
        return _shared(array).to(self._device, self._dtype)

    def _label_tensor(self, y: np.ndarray) -> Any:
        return _shared(y).to(self._device, self._known.kind)

    def _checked(self, theta: Any) -> np.ndarray:
        theta = np.asarray(theta, dtype=float)
        if theta.shape != (self.size,):
            raise ParameterError(f"{self!r} has {self.size} parameters; found theta of shape {theta.shape}")
        return theta

    def _generator_state(self, torch: Any) -> Any:
        return torch.cuda.get_rng_state(self._device) if self._device.type == "cuda" else torch.get_rng_state()

    @contextmanager
    def _normalising(self, rows: int) -> Iterator[None]:
        """Raise a clear error where BatchNorm gets one row, for which torch raises a ValueError."""
        try:
            yield
        except ValueError as error:
            if not self._mixes or rows != 1:
                raise
            raise MismatchError(
                f"{self!r} normalises by the batch (BatchNorm), and was given a batch of one row: {error}. Use "
                "torch.nn.GroupNorm or LayerNorm, or give every agent, and every minibatch, two rows at least"
            ) from error

    @contextmanager
    def _seeded(self, dice: Any) -> Iterator[None]:
        """Seed torch's random numbers with `dice`, and restore the state of its generators afterwards."""
        torch = _torch()
        with torch.random.fork_rng([self._device] if self._device.type == "cuda" else []):
            torch.manual_seed(
                int.from_bytes(hashlib.blake2b(np.asarray(dice).tobytes(), digest_size=7).digest(), "big")
            )
            yield


class _Flat:
    """A module whose trained parameters are views of one vector, and whose gradients are views of another."""

    def __init__(self, torch: Any, module: Any, names: list[str]):
        self.module = module
        parameters = dict(module.named_parameters())
        mine = [parameters[name] for name in names]
        self.theta = torch.cat([parameter.detach().reshape(-1) for parameter in mine])
        self.gradient = torch.zeros_like(self.theta)
        end = 0
        for parameter in mine:
            part = slice(end, end + parameter.numel())
            end = part.stop
            parameter.data = self.theta[part].view(parameter.shape)
            parameter.grad = self.gradient[part].view(parameter.shape)

    def load(self, theta: np.ndarray) -> None:
        self.theta.copy_(_shared(theta))

    def again(self, names: list[str]) -> _Flat:
        """Restore the views, which a copy of the module has broken."""
        return _Flat(_torch(), self.module, names)


def _shared(array: np.ndarray) -> Any:
    """Return an array as a tensor; read-only arrays are copied, because torch only shares writable memory."""
    return _torch().from_numpy(array if array.flags.writeable else array.copy())


def _torch() -> Any:
    try:
        return importlib.import_module("torch")
    except ImportError as error:
        raise MissingExtra('ct.models.Torch needs PyTorch: pip install "coterie[torch]"') from error


def _trained(torch: Any, module: Any) -> dict[str, Any]:
    """Return the parameters to train, by name; parameters that torch modules share are listed once."""
    for name, parameter in module.named_parameters():
        if isinstance(parameter, torch.nn.parameter.UninitializedParameter):
            raise ParameterError(f"the parameter {name!r} has no shape yet: call the module once on a row before")
    trained = {name: parameter for name, parameter in module.named_parameters() if parameter.requires_grad}
    if not trained:
        raise ParameterError(
            f"{type(module).__name__} has no parameters to train: it needs at least one with requires_grad=True"
        )
    for name, parameter in trained.items():
        if not parameter.is_floating_point():
            raise ParameterError(
                f"the parameter {name!r} is {parameter.dtype}: only real floating-point parameters can be averaged. "
                "Set requires_grad=False for it, or make a complex one of two real ones"
            )
    running = [
        f"{name}.running_mean" if name else "running_mean"
        for name, part in module.named_modules()
        if isinstance(part, torch.nn.modules.batchnorm._NormBase) and part.running_mean is not None
    ]
    if running:
        raise ParameterError(_remembers(running))
    return trained


def _remembers(names: list[str]) -> str:
    return (
        f"the module changes its buffers {', '.join(names)} when it is trained, and agents neither average nor send "
        "these: use torch.nn.GroupNorm or LayerNorm, or BatchNorm with track_running_stats=False"
    )


def _takes_logits(torch: Any, loss: Any) -> bool:
    """Whether a loss of PyTorch is known to take logits of two classes."""
    functional = torch.nn.functional
    while isinstance(loss, functools.partial):
        loss = loss.func
    known = (functional.binary_cross_entropy_with_logits, functional.soft_margin_loss)
    return isinstance(loss, (torch.nn.BCEWithLogitsLoss, torch.nn.SoftMarginLoss)) or any(loss is one for one in known)


def _row_loss(torch: Any, loss: Any, device: Any, dtype: Any) -> Callable[..., Any]:
    """Return the loss with ``reduction="none"``, if it has that argument."""
    if isinstance(loss, torch.nn.Module):
        if next(loss.parameters(), None) is not None:
            raise ParameterError(f"the loss {loss!r} has parameters: make them part of the module")
        made: Any = copy.deepcopy(loss).to(device, dtype)
        if hasattr(made, "reduction"):
            made.reduction = "none"
        return made
    if not callable(loss):
        raise ParameterError(
            f"loss={loss!r} must be a function of (outputs, labels), such as torch.nn.functional.cross_entropy"
        )
    try:
        asked = "reduction" in inspect.signature(loss).parameters
    except (TypeError, ValueError):  # functions written in C have no signature
        asked = False
    return functools.partial(loss, reduction="none") if asked else loss
