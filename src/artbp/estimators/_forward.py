"""What the forward methods share: one step at a time, and the parameters' influence on the state carried along."""

from __future__ import annotations

import functools
import importlib
import warnings
from abc import abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import forward_ad

from artbp import _tree
from artbp._law import fresh_generator
from artbp._step import Step, no_gradient, run
from artbp.estimators._estimator import Estimator
from artbp.estimators._graph import leaves_of, silenced
from artbp.laws import Fixed
from artbp.truncation import Truncation


class Moment(NamedTuple):
    """One step: its loss and state with their graph, and what the direction that came in has become."""

    loss: Tensor  # ()
    state: Tensor  # (n,), what of the state is a number with a gradient, as one vector
    before: list[Tensor]  # the same of the state that came in, as leaves
    parameters: list[Tensor]
    crossing: Tensor | None  # (), ∂ℓ/∂s · direction
    moved: Tensor | None  # (n,), ∂F/∂s · direction


class Forward(Estimator):
    """A method that runs forward only. A state's influence is carried on where `stream` is given that very state.

    Attributes:
        parameters: those met so far.
        influence: for each of them, what is remembered of its influence on the state.
        direction: (n,), the state's side of a rank-one influence; None where there is none (yet).
        at: the tensors of the state that all this is about.
    """

    directed = False  # whether `direction` is carried through the step in forward mode
    parameters: list[Tensor]
    influence: list[Tensor]
    direction: Tensor | None
    at: list[Tensor]

    def __init__(
        self,
        parameters: Iterable[Tensor] | None = None,
        seed: int | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        if seed is not None and generator is not None:
            raise ValueError(
                f"{type(self).__name__} got both a seed and a generator: the draws come from one place. Pass seed= for "
                "a generator of its own, or generator= to share yours."
            )
        self.given = None if parameters is None else list(parameters)
        for leaf in self.given or ():
            if not leaf.is_leaf or not leaf.requires_grad:
                raise ValueError(
                    f"{type(self).__name__}(parameters) got a tensor of shape {tuple(leaf.shape)} that is no leaf "
                    "which requires grad, so there is no .grad to leave an estimate in. Pass model.parameters(), or "
                    "nothing: the leaves of the step's own graph are found."
                )
        self.generator = generator if generator is not None else fresh_generator(seed)
        self.copied = False  # whether this is a copy that has not run yet
        self.reset()

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    @property
    def unbiased(self) -> bool:
        return True

    @property
    def mean(self) -> float:
        return 1.0

    def __call__(self, step: Step, inputs: Any, state: Any) -> tuple[Tensor, Any]:
        """One whole sequence, from no influence; what a stream remembers is left alone: (loss, state)."""
        T = _tree.length(inputs)
        if not T:
            raise ValueError(
                f"{self!r} got inputs of {'no tensor' if T is None else 'no steps'}, so there is no step to take. "
                "Pass inputs with time as dimension 0; where a step needs none, torch.zeros(T)."
            )
        kept = self._memory()
        self.reset()
        try:
            losses, sums = [], dict[int, tuple[Tensor, Tensor]]()
            for t in range(T):
                loss, state, gradients = self._advance(step, _tree.window(inputs, t, t + 1), state)
                losses.append(loss)
                for leaf, gradient in gradients:
                    sums[id(leaf)] = leaf, gradient + sums[id(leaf)][1] if id(leaf) in sums else gradient
        finally:
            self._remember(*kept)
        _hand_on(list(sums.values()))
        return torch.stack(losses).sum(), state

    def stream(self, step: Step, stream: Any, state: Any) -> Iterator[tuple[Tensor, Any]]:
        """Online: (loss, state) after every step. Its influence is remembered with the state that is yielded."""
        if not _same(self.at, _tree.tensors(state)):
            self.reset()
        for inputs, _ in Truncation(Fixed(1), seed=0).segments(stream):
            loss, state, gradients = self._advance(step, inputs, state)
            self.at = [leaf.clone() for leaf in _tree.tensors(state)]  # the caller may change what it was given
            _hand_on(gradients)
            yield loss, state

    def reset(self) -> None:
        """Forget all influence: the state that comes next depends on no parameter."""
        self._remember([], [], None, [])

    def state_dict(self) -> dict[str, Any]:
        self._refuse_late()
        return {
            **super().state_dict(),
            "influence": [part.clone() for part in self.influence],
            "direction": None if self.direction is None else self.direction.clone(),
            "at": [leaf.clone() for leaf in self.at],
            "generator": self.generator.get_state(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._remember([], list(state["influence"]), state["direction"], list(state["at"]))
        self.generator.set_state(state["generator"].cpu())

    def __getstate__(self) -> dict[str, Any]:
        """A copy remembers no parameters that it found, whose own copies no step would use: it finds them anew."""
        self._refuse_late()
        return {**self.__dict__, "parameters": [], "copied": True}

    def _refuse_late(self) -> None:
        if self.late:
            raise RuntimeError(
                f"{self!r} met its parameters in several steps, some later than others: whoever goes on from a copy or "
                "a saved state could not tell which influence is whose. Name them, parameters=list(model.parameters())."
            )

    def _refuse_orphans(self, found: set[int]) -> None:
        """A copy of the parameters that were given belongs to no model, unless that was copied with them."""
        if self.copied and self.given is not None and found.isdisjoint(map(id, self.given)):
            raise RuntimeError(
                f"this {self!r} is a copy, and so are the parameters it was given: the step uses none of them, and no "
                "gradient would reach the model. Copy both together, copy.deepcopy((model, estimator)), or build a new "
                "one with parameters=list(model.parameters()) and load the other's state_dict()."
            )

    @abstractmethod
    def _estimate(self, moment: Moment) -> list[Tensor]:
        """The estimate for each parameter; moves the influence on to the state after the step."""

    # One step

    def _advance(self, step: Step, inputs: Any, state: Any) -> tuple[Tensor, Any, list[tuple[Tensor, Tensor]]]:
        _refuse_history(self, inputs, "inputs")
        _refuse_history(self, state, "a state")
        _refuse_complex(self, state)
        leaves = [leaf.detach() for leaf in _tree.tensors(state)]
        before = [leaf.requires_grad_() for leaf in leaves if leaf.is_floating_point()]
        crossing = moved = None
        with torch.enable_grad(), _plain_kernels(), ExitStack() as stack:
            given = [leaf.clone() for leaf in leaves]  # no leaves: a step may change its state in place
            direction = self._direction(before) if self.directed else None
            if direction is not None:
                _prepare_forward_mode()
                stack.enter_context(forward_ad.dual_level())
                duals = map(_dual, _floating(given), direction)
                given = [next(duals) if leaf.is_floating_point() else leaf for leaf in given]
            loss, after = run(step, inputs, _tree.replace(state, given, fresh=True), None)
            if direction is not None:
                crossing, loss = _unpacked(loss)
                pairs = [_unpacked(leaf) for leaf in _tree.tensors(after)]
                moved = _flat(_floating([tangent for tangent, _ in pairs]))
                after = _tree.replace(after, [leaf for _, leaf in pairs])
        floating = _floating(_tree.tensors(after))
        parameters = self._found([loss, *floating], before)
        with torch.enable_grad():
            flat = _flat(floating)
        moment = Moment(loss, flat, before, parameters, crossing, moved)
        with silenced(parameters):
            gradients = self._estimate(moment)
        return loss.detach(), _tree.detach(after), list(zip(parameters, gradients, strict=True))

    def _direction(self, before: list[Tensor]) -> list[Tensor] | None:
        """The direction, in the shapes of the state's tensors."""
        if self.direction is None:
            return None
        if self.direction.numel() != sum(leaf.numel() for leaf in before):
            raise ValueError(
                f"the state that {self!r} loaded holds a direction of {self.direction.numel()} numbers, and the step's "
                f"tensors have shapes {[tuple(leaf.shape) for leaf in before]}. Load it for the model and the state it "
                "was saved with, or start anew with reset()."
            )
        parts = torch.split(self.direction, [leaf.numel() for leaf in before])
        return [part.view_as(leaf).to(leaf.dtype) for part, leaf in zip(parts, before, strict=True)]

    def _found(self, roots: list[Tensor], before: list[Tensor]) -> list[Tensor]:
        """The parameters, those of earlier steps first: an influence is at the same place for good."""
        own = {id(leaf) for leaf in before}
        now = self.given
        if now is None or self.copied:
            found = [leaf for leaf in leaves_of(roots) if id(leaf) not in own]
            self._refuse_orphans({id(leaf) for leaf in found})
            self.copied = False
            now = found if now is None else now
        known = {id(leaf) for leaf in self.parameters}
        parameters = self.parameters + [leaf for leaf in now if id(leaf) not in known]
        if not parameters:
            raise no_gradient()
        if not self.parameters and self.influence:
            self._check_loaded(parameters)
        self.late |= 0 < len(self.parameters) < len(parameters)
        self.parameters = parameters
        return parameters

    def _check_loaded(self, parameters: list[Tensor]) -> None:
        saved = [tuple(part.shape) for part in self.influence]
        shapes = [self._shape(leaf) for leaf in parameters]
        if saved != shapes:
            raise ValueError(
                f"the state that {self!r} loaded holds influences of shapes {saved}, but the step has parameters that "
                f"need {shapes}. Load it for the model and the state it was saved with, or start anew with reset()."
            )

    def _shape(self, leaf: Tensor) -> tuple[int, ...]:
        """The shape of what is remembered of one parameter."""
        return tuple(leaf.shape)

    def _signs(self, n: int, like: Tensor) -> Tensor:
        """Independent signs ±1, (n,)."""
        signs = torch.empty(n, dtype=torch.float32).bernoulli_(0.5, generator=self.generator)
        return signs.mul_(2).sub_(1).to(like, non_blocking=True)

    def _memory(self) -> tuple[list[Tensor], list[Tensor], Tensor | None, list[Tensor], bool]:
        return self.parameters, self.influence, self.direction, self.at, self.late

    def _remember(
        self,
        parameters: list[Tensor],
        influence: list[Tensor],
        direction: Tensor | None,
        at: list[Tensor],
        late: bool = False,
    ) -> None:
        self.parameters, self.influence, self.direction, self.at = parameters, influence, direction, at
        self.late: bool = late  # whether some parameter was met in a later step than the first


def _hand_on(gradients: list[tuple[Tensor, Tensor]]) -> None:
    # A backward pass from the leaves: hooks fire, and what is in .grad is added to.
    torch.autograd.backward([leaf for leaf, _ in gradients], [gradient for _, gradient in gradients])


def _flat(leaves: list[Tensor]) -> Tensor:
    return torch.cat([leaf.reshape(-1) for leaf in leaves]) if leaves else torch.zeros(0)


def _refuse_complex(estimator: Forward, state: Any) -> None:
    if any(leaf.is_complex() for leaf in _tree.tensors(state)):
        raise TypeError(
            f"{estimator!r} got a state with complex tensors: it carries the influence on real numbers. Keep "
            "torch.view_as_real(z) in the state and torch.view_as_complex it in the step, or use ARTBP(law)."
        )


def _same(one: list[Tensor], other: list[Tensor]) -> bool:
    return 0 < len(one) == len(other) and all(
        a.shape == b.shape and a.dtype == b.dtype and torch.equal(a.to(b.device), b)
        for a, b in zip(one, other, strict=True)
    )


@functools.cache
def _prepare_forward_mode() -> None:
    with warnings.catch_warnings():  # what torch imports at the first dual tensor warns of torch's own habits
        warnings.simplefilter("ignore")
        importlib.import_module("torch._decomp.decompositions_for_jvp")


def _dual(primal: Tensor, tangent: Tensor) -> Tensor:
    dual: Tensor = forward_ad.make_dual(primal, tangent)  # type: ignore[no-untyped-call]  # torch's own
    return dual


def _unpacked(tensor: Tensor) -> tuple[Tensor, Tensor]:
    """(tangent, primal); zeros for a tensor that the direction did not reach."""
    primal, tangent = forward_ad.unpack_dual(tensor)  # type: ignore[no-untyped-call]  # torch's own
    return torch.zeros_like(primal) if tangent is None else tangent.detach(), primal


@contextmanager
def _plain_kernels() -> Iterator[None]:
    """Keeps torch.nn's layers off the fused kernels, which know neither forward mode nor batches of gradients."""
    backends: list[Any] = [torch.backends.cudnn, torch.backends.mkldnn]
    enabled = [backend.enabled for backend in backends]
    try:
        for backend in backends:
            backend.enabled = False
        yield
    finally:
        for backend, was in zip(backends, enabled, strict=True):
            backend.enabled = was


def _floating(leaves: list[Tensor]) -> list[Tensor]:
    return [leaf for leaf in leaves if leaf.is_floating_point()]


def _refuse_history(estimator: Forward, tree: Any, what: str) -> None:
    if any(leaf.requires_grad for leaf in _tree.tensors(tree)):
        raise ValueError(
            f"{estimator!r} got {what} that require{'s' if what.startswith('a') else ''} grad: it carries forward the "
            "influence of what each step uses, and has no way back to what was computed before. Compute it in the "
            "step (an encoder in front, a first state made from None), or pass it detached."
        )
