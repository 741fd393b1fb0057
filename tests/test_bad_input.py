"""Bad input to link, unroll and backprop: what was passed and why it cannot work, and what to do instead."""

import math
import re

import numpy as np
import pytest
import torch
from messages import VALUES, check

import artbp

# ---- link ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("factor", "dim", "what"),
    [
        (torch.ones(4), 0, r"4|\(4,\)"),
        (torch.ones(3), 1, r"3|\(3,\)"),
        (torch.ones(3, 1), 0, r"\(3, 1\)"),
        (torch.ones(3), 2, r"dim"),
    ],
)
def test_a_factor_of_the_wrong_shape(factor, dim, what):
    state = {"h": torch.zeros(3, 5, requires_grad=True)}
    check(lambda: artbp.link(state, factor, dim=dim), VALUES, what, r"dim|\(B,\)|lane|number")


def test_a_factor_of_the_wrong_shape_for_one_part_of_the_state():
    state = (torch.zeros(3, 5, requires_grad=True), torch.zeros(4, 5, requires_grad=True))
    check(lambda: artbp.link(state, torch.ones(3)), VALUES, r"3.*4|4.*3", r"dim|\(B,\)|lane|number")


@pytest.mark.parametrize("factor", ["1.0", None, [1.0, 2.0], np.ones((3, 5))])
def test_a_factor_that_is_no_number(factor):
    check(lambda: artbp.link(torch.zeros(3, 5, requires_grad=True), factor), VALUES, r"factor", r"number|tensor")


@pytest.mark.parametrize("factor", [math.nan, math.inf, -1.0])
def test_a_number_that_is_no_link(factor):
    check(
        lambda: artbp.link(torch.zeros(3, requires_grad=True), factor),
        VALUES,
        re.escape(str(factor)),
        r"finite|1/\(1-c\)|Truncation|at least 0",
    )


# ---- backprop --------------------------------------------------------------------------------------------------------


def cell(input_t, state):
    state = 0.5 * state + input_t
    return state.square().sum(), state


STEP = artbp.unroll(cell)
INPUTS, START = torch.ones(6, 2), torch.zeros(2, requires_grad=True)


@pytest.mark.parametrize("window", [0, -1, 2.5, "2"])
def test_windows_that_are_no_whole_number(window):
    check(
        lambda: artbp.backprop(STEP, INPUTS, START, window=window),
        VALUES,
        f"window.*{re.escape(str(window))}",
        r"whole|integer|positive|None|at least",
    )


@pytest.mark.parametrize("window", [None, 2, 6])
@pytest.mark.parametrize("length", [7, 5, 1])
def test_links_of_another_length_than_the_inputs(length, window):
    links = torch.ones(length, dtype=torch.float64)
    check(
        lambda: artbp.backprop(STEP, INPUTS, START, links, window=window),
        VALUES,
        f"{length}.*6|6.*{length}",
        r"link|slice|pass|one per|trim",
    )


@pytest.mark.parametrize("links", [torch.ones(6, 3), torch.ones(6, 2, 1)])
def test_links_of_the_wrong_shape(links):
    check(lambda: artbp.backprop(STEP, INPUTS, START, links), VALUES, r"3|\(6, 2, 1\)|factor", r"lane|\(T|\(B")


@pytest.mark.parametrize("window", [None, 2])
@pytest.mark.parametrize(
    ("links", "what"),
    [
        ([1.0] * 6, r"links are \[1\.0.*list"),
        (np.ones(6), r"links are array.*ndarray"),
        (2.0, r"links are 2\.0.*float"),
        (torch.ones(6, requires_grad=True), r"links.*requires grad"),
        (torch.ones(6, 2, requires_grad=True), r"links.*requires grad"),
        (torch.ones(6, 2, dtype=torch.complex64), r"links.*complex64"),
    ],
)
def test_links_of_another_kind(links, what, window):
    check(
        lambda: artbp.backprop(STEP, INPUTS, START, links, window=window),
        VALUES,
        what,
        r"Pass links \(T,\)|links\.detach\(\)",
    )


@pytest.mark.parametrize("inputs", [np.ones((6, 2)), [1.0, 2.0], "text"], ids=["array", "numbers", "text"])
@pytest.mark.parametrize("links", [None, torch.ones(6)])
def test_inputs_without_a_tensor_are_not_taken_whole_in_every_step(inputs, links):
    check(lambda: artbp.backprop(STEP, inputs, START, links), VALUES, r"inputs are.*no tensor", r"from_numpy.*None")


def test_nothing_to_go_by():
    check(lambda: artbp.backprop(STEP, None, START), VALUES, r"inputs.*links|None", r"links|inputs")


@pytest.mark.parametrize("window", [None, 2, 6])
def test_a_loss_that_is_not_a_scalar(window):
    def step(inputs, state, links):
        return inputs.square() * START, state

    check(
        lambda: artbp.backprop(step, INPUTS, START, window=window),
        VALUES,
        r"loss.*(\(6, 2\)|\(2, 2\)|shape)",
        r"sum|scalar",
    )


@pytest.mark.parametrize("window", [None, 2])
def test_a_loss_that_is_no_tensor_or_needs_no_gradient(window):
    error = (ValueError, TypeError, RuntimeError)
    check(
        lambda: artbp.backprop(lambda i, s, k: (3.0, s), INPUTS, START, window=window),
        error,
        r"loss|float",
        r"tensor|sum",
    )
    frozen = torch.zeros(2)
    check(
        lambda: artbp.backprop(STEP, INPUTS, frozen, window=window),
        error,
        r"grad|parameter",
        r"requires_grad|no_grad|parameter",
    )


@pytest.mark.parametrize("window", [None, 2])
def test_inference_mode_records_nothing(window):
    with torch.inference_mode():
        check(
            lambda: artbp.backprop(STEP, INPUTS, START, window=window),
            RuntimeError,
            r"requires grad",
            r"inference_mode",
        )


@pytest.mark.parametrize("window", [None, 2])
def test_a_step_that_returns_something_else(window):
    check(
        lambda: artbp.backprop(lambda i, s, k: s.sum(), INPUTS, START, window=window),
        VALUES,
        r"step|return",
        r"\(loss|loss, state|unroll",
    )


@pytest.mark.parametrize("window", [None, 2])
@pytest.mark.parametrize(
    ("returned", "what", "instead"),
    [
        (lambda loss, state: torch.stack([loss, loss]), r"cell returned Tensor", r"\(loss, state\)"),
        (lambda loss, state: [loss, state], r"cell returned \[Tensor, Tensor\]", r"\(loss, state\)"),
        (lambda loss, state: (loss, state, state), r"cell returned \(Tensor, Tensor, Tensor\)", r"\(loss, state\)"),
        (lambda loss, state: (3.0, state), r"cell's loss is 3\.0", r"scalar.*sum"),
        (lambda loss, state: (state, state), r"cell's loss is of shape \(2,\)", r"scalar.*sum"),
    ],
)
def test_a_cell_that_returns_something_else(returned, what, instead, window):
    """A tensor of two rows would unpack, in silence, into a loss and a state."""
    step = artbp.unroll(lambda input_t, state: returned(*cell(input_t, state)))
    check(lambda: artbp.backprop(step, INPUTS, START, window=window), VALUES, what, instead)


@pytest.mark.parametrize("returned", ["longer tuple", "other key", "tensor for tuple", "number for tensor"])
def test_a_state_whose_tree_changes_between_windows(returned):
    start = {"h": torch.zeros(2), "c": (torch.zeros(2, requires_grad=True), 0)}

    def step(inputs, state, links):
        count = state["c"][1] + 1 if isinstance(state, dict) and isinstance(state.get("c"), tuple) else 1
        new = {"h": inputs.sum(0), "c": (START + 1.0, count)}
        if count > 1:
            new = {
                "longer tuple": {**new, "c": (START + 1.0, count, START * 2)},
                "other key": {"h": new["h"], "d": new["c"]},
                "tensor for tuple": {**new, "c": START * 2.0},
                "number for tensor": {**new, "h": 3.0},
            }[returned]
        return (START * 2.0).sum(), new

    error = (ValueError, TypeError)
    check(lambda: artbp.backprop(step, INPUTS, start, window=2), error, r"state", r"same|window|tree|return|None")


def test_inputs_of_unequal_length():
    inputs = (torch.ones(6, 2), torch.ones(5, 2))
    check(
        lambda: artbp.backprop(STEP, inputs, START, window=2),
        VALUES,
        r"6.*5|5.*6",
        r"same|equal|length|first dim|one size",
    )


def test_the_users_own_error_comes_through():
    def step(inputs, state, links):
        raise KeyError("mine")

    for window in (None, 2):
        with pytest.raises(KeyError, match="mine"):
            artbp.backprop(step, INPUTS, START, window=window)


def test_inputs_that_the_step_changes():
    def step(inputs, state, links):
        inputs.mul_(2.0)
        return (inputs.sum(0) * state).sum(), state

    check(
        lambda: artbp.backprop(step, torch.ones(6, 2), START, window=2),
        RuntimeError,
        r"inputs.*in place|in place.*inputs",
        r"copy|clone|window",
    )
