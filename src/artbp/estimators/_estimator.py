"""What every estimator is to its caller."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

from torch import Tensor

from artbp._step import Step


class Estimator(ABC):
    """A way to estimate the gradient of a recurrent computation: a value behind the same two calls as its peers.

    Both leave the gradient of the *sum* of the losses in `.grad`, on top of what is there, and return loss and state
    detached. Divide by a constant (:attr:`mean` times lanes), never by a segment's own length.
    """

    @abstractmethod
    def __call__(self, step: Step, inputs: Any, state: Any) -> tuple[Tensor, Any]:
        """One whole sequence, inputs (T, …), from a state that is given and not learned through: (loss, state)."""

    @abstractmethod
    def stream(self, step: Step, stream: Any, state: Any) -> Iterator[tuple[Tensor, Any]]:
        """Online: (loss, state) at every point where a parameter update belongs, until the stream ends.

        Then `.grad` holds the gradient of that loss; the caller updates and zeroes, and asks for the next.

        Args:
            step: `step(inputs, state, links) -> (loss, state)`, the loss summed over its steps.
            stream: a tree of tensors (T, …), or anything with `take(n)`: the next n steps, fewer or none at its end.
            state: where the stream begins; what is yielded with the loss is where it stands.
        """

    @property
    @abstractmethod
    def unbiased(self) -> bool:
        """Whether the expected gradient is the exact one, for frozen parameters."""

    @property
    @abstractmethod
    def mean(self) -> float:
        """The mean number of steps from one update of a stream to the next: the constant to divide by."""

    def state_dict(self) -> dict[str, Any]:
        """All that the estimator remembers between two updates of a stream, generator included."""
        return {"estimator": repr(self)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state_dict` was taken; refused for another estimator."""
        if state.get("estimator") != repr(self):
            raise ValueError(
                f"this state was saved by {state.get('estimator')} and cannot go on as {self!r}, which remembers "
                "other things. Build the estimator that was saved, or start anew without loading."
            )
