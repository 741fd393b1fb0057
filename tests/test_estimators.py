"""Every estimator meets every problem: the exact ones to rounding, the random ones by enumeration, and all by habit."""

import copy
import itertools
import math
import pickle
from functools import lru_cache

import pytest
import torch
from enumeration import age_only, expectation, oracle_gradient, patterns, relative_error
from messages import VALUES, check
from problems import ALL, CELLS, scalar_linear, tree_tensors

import artbp
from artbp import estimators
from artbp.estimators import ARTBP, BPTT, RTRL, UORO, CheckpointedBPTT, NoBackTrack, TruncatedBPTT
from artbp.estimators.checkpointed import split

LAW = artbp.PowerLaw(mean=3, alpha=4)
EXACT = {
    "BPTT()": BPTT,
    "BPTT(window=2)": lambda: BPTT(window=2),
    "CheckpointedBPTT(2)": lambda: CheckpointedBPTT(2),
    "CheckpointedBPTT(1, slots=1)": lambda: CheckpointedBPTT(1, slots=1),
    "CheckpointedBPTT(1, slots=3)": lambda: CheckpointedBPTT(1, slots=3),
    "RTRL()": RTRL,
}
RANDOM = {
    "ARTBP(PowerLaw(mean=3, alpha=4))": lambda: ARTBP(LAW, seed=0),
    "ARTBP(PowerLaw(mean=3, alpha=4), window=2)": lambda: ARTBP(LAW, window=2, seed=0),
    "UORO()": lambda: UORO(seed=0),
    "NoBackTrack()": lambda: NoBackTrack(seed=0),
}
OTHERS = {"TruncatedBPTT(2)": lambda: TruncatedBPTT(2), "TruncatedBPTT(3, window=2)": lambda: TruncatedBPTT(3, 2)}
EVERY = {**EXACT, **RANDOM, **OTHERS}


def step_of(problem):
    return artbp.unroll(problem.cell, dim=problem.dim)


def whole(estimator, problem):
    loss, state = estimator(step_of(problem), problem.inputs, problem.state)
    return loss, state, problem.gradients()


def online(estimator, problem):
    """The sums over a stream without updates: losses, gradients, and how often there was something to update."""
    losses, sums, updates, state = [], None, 0, problem.state
    for loss, state in estimator.stream(step_of(problem), problem.inputs, problem.state):  # noqa: B007 - returned
        gradients = problem.gradients()
        sums = gradients if sums is None else {name: sums[name] + gradients[name] for name in sums}
        losses.append(loss)
        updates += 1
    return torch.stack(losses).sum(), state, sums, updates


def test_all_that_is_exported():
    public = {name for name, value in vars(estimators).items() if isinstance(value, type) and not name.startswith("_")}
    assert public == set(estimators.__all__)
    assert estimators.__all__ == sorted(estimators.__all__, key=lambda name: (not name.isupper(), name))


@pytest.mark.parametrize("written", EVERY)
def test_a_value_looks_as_it_is_written_in_python(written):
    assert repr(EVERY[written]()) == written
    assert repr(eval(written, {**vars(estimators), "PowerLaw": artbp.PowerLaw})) == written


def test_options_are_written_too():
    assert repr(ARTBP(LAW, block=2, cap=4)) == "ARTBP(PowerLaw(mean=3, alpha=4), block=2, cap=4)"
    assert repr(ARTBP(LAW, 8, compensate=False)) == "ARTBP(PowerLaw(mean=3, alpha=4), window=8, compensate=False)"


@pytest.mark.parametrize("estimator", EVERY.values(), ids=EVERY)
@pytest.mark.parametrize("problem", ALL.values(), ids=ALL)
def test_loss_and_state_are_those_of_the_plain_loop(problem, estimator):
    problem = problem(steps=4)
    loss, states = problem.plain()
    for found, state, *_ in (whole(estimator(), problem), online(estimator(), problem)):
        torch.testing.assert_close(found, loss.detach(), rtol=1e-12, atol=1e-12)
        assert not found.requires_grad
        for left, expected in zip(tree_tensors(state), tree_tensors(states[-1]), strict=True):
            assert not left.requires_grad
            torch.testing.assert_close(left, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("estimator", EXACT.values(), ids=EXACT)
@pytest.mark.parametrize("problem", ALL.values(), ids=ALL)
def test_the_exact_ones_are_exact(problem, estimator):
    problem = problem(steps=6)
    assert estimator().unbiased
    tolerance = 1e-10 if isinstance(estimator(), RTRL) else 1e-12
    *_, found = whole(estimator(), problem)
    assert relative_error(found, problem.exact) < tolerance
    *_, summed, _ = online(estimator(), problem)
    assert relative_error(summed, problem.exact) < tolerance


# Not the dict state: its gradient comes from four places, and autograd adds them in another order across a boundary.
ONE_ORDER = {name: problem for name, problem in CELLS.items() if name != "dict_state"}


@pytest.mark.parametrize("slots", [None, 1, 2, 3, 20])
@pytest.mark.parametrize("problem", ONE_ORDER.values(), ids=ONE_ORDER)
def test_checkpointed_is_bitwise_plain_where_the_sums_have_one_order(problem, slots):
    problem = problem(steps=6)
    *_, plain = whole(BPTT(), problem)
    *_, found = whole(CheckpointedBPTT(1, slots), problem)
    assert all(torch.equal(found[name], plain[name]) for name in plain)


@pytest.mark.parametrize("window", [2, 3, 5])
def test_checkpointed_windows_with_slots(window):
    problem = CELLS["lstm"](steps=11)
    for slots in (1, 2, 4):
        *_, found = whole(CheckpointedBPTT(window, slots), problem)
        assert relative_error(found, problem.exact) < 1e-12


@pytest.mark.parametrize("problem", CELLS.values(), ids=CELLS)
def test_truncated_is_biased_as_its_links_say(problem):
    problem = problem(steps=6)
    assert not TruncatedBPTT(3).unbiased
    links = torch.tensor([1.0, 1, 1, 0, 1, 1], dtype=torch.float64)
    expected = oracle_gradient(problem, links)
    assert relative_error(expected, problem.exact) > 0.01
    assert relative_error(whole(TruncatedBPTT(3), problem)[2], expected) < 1e-12
    *_, summed, updates = online(TruncatedBPTT(3), problem)
    assert relative_error(summed, expected) < 1e-12
    assert updates == 2


@pytest.mark.parametrize("window", [None, 2])
@pytest.mark.parametrize("problem", ALL.values(), ids=ALL)
def test_artbp_is_unbiased_by_enumeration(problem, window):
    problem, estimator = problem(steps=5), ARTBP(LAW, window)
    assert estimator.unbiased

    def under(problem, links):
        estimator.cut.links = lambda T: links
        return whole(estimator, problem)[2]

    mean, variance = expectation(problem, patterns(age_only(LAW), 5), under)
    assert relative_error(mean, problem.exact) < 1e-12
    assert variance > 0


@pytest.mark.parametrize("problem", CELLS.values(), ids=CELLS)
def test_artbp_online_is_unbiased_by_enumeration(problem):
    """Over all ways of filling five steps with segments, the last of them as long as it is drawn."""
    problem, estimator = problem(steps=5), ARTBP(LAW)

    def under(problem, links):
        starts = [t for t in range(5) if t == 0 or links[t] == 0]
        lengths = iter([b - a for a, b in itertools.pairwise([*starts, 5])])
        estimator.cut.reset()
        estimator.cut._draw = lambda: next(lengths, 10)
        *_, summed, updates = online(estimator, problem)
        assert updates == len(starts)
        return summed

    mean, _ = expectation(problem, patterns(age_only(LAW), 5), under)
    assert relative_error(mean, problem.exact) < 1e-12


def test_a_law_that_looks_at_the_state_cuts_a_whole_sequence():
    class Looks(artbp.Law):
        needs_state = True

        def hazard(self, age, state):
            return float(0.5 * torch.exp(-state.detach().abs().mean()))

    problem = scalar_linear(steps=6)
    *_, found = whole(ARTBP(Looks(), seed=0), problem)
    twin = artbp.Truncation(Looks(), seed=0)
    _, states = problem.plain()
    links = torch.tensor([twin.step(state) for state in [problem.state, *states[:-1]]], dtype=torch.float64)
    links[0] = 1.0
    assert relative_error(found, oracle_gradient(problem, links)) < 1e-12


@pytest.mark.parametrize("estimator", EVERY.values(), ids=EVERY)
def test_gradients_are_added_to_what_is_there_and_hooks_fire_once(estimator):
    problem, calls = CELLS["rnn"](steps=3), []
    *_, expected = whole(estimator(), problem)
    readout = problem.parameters["readout"]
    readout.grad = torch.ones_like(readout)
    handle = readout.register_hook(calls.append)
    *_, found = whole(estimator(), problem)
    handle.remove()
    assert len(calls) == 1
    torch.testing.assert_close(found["readout"], expected["readout"] + 1, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("estimator", EVERY.values(), ids=EVERY)
def test_a_stream_resumes_bitwise(estimator, tmp_path):
    """Saved after two updates, to a file: losses, gradients and updated parameters go on as they would have."""

    def run(updates, saved=None):
        problem, one, trace, taken, state = CELLS["gru"](steps=8), estimator(), [], [0], None
        state, position = problem.state, 0
        if saved is not None:
            one.load_state_dict(saved["estimator"])
            state, position = saved["state"], saved["position"]
            with torch.no_grad():
                for leaf, value in zip(problem.parameters.values(), saved["parameters"], strict=True):
                    leaf.copy_(value)

        class Stream:
            def take(self, n):
                first = taken[0] + position
                rows = problem.inputs[first : first + n]
                taken[0] += len(rows)
                return rows

        for loss, state in one.stream(step_of(problem), Stream(), state):  # noqa: B007, B020 - carried on
            with torch.no_grad():
                for leaf, gradient in zip(problem.parameters.values(), problem.gradients().values(), strict=True):
                    leaf -= 0.01 * gradient
            trace.append(loss)
            if len(trace) == updates:
                break
        parameters = [leaf.detach().clone() for leaf in problem.parameters.values()]
        saved = {"estimator": one.state_dict(), "state": state, "position": position + taken[0]}
        return trace, {**saved, "parameters": parameters}

    trace, final = run(100)
    if len(trace) == 1:
        return  # one update, at the end: nothing is left to resume
    _, saved = run(2)
    torch.save(saved, tmp_path / "saved.pt")
    resumed, again = run(100, torch.load(tmp_path / "saved.pt", weights_only=True))
    assert [float(loss) for loss in trace[2:]] == [float(loss) for loss in resumed]
    assert all(torch.equal(a, b) for a, b in zip(final["parameters"], again["parameters"], strict=True))


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))], ids=["copy", "pickle"])
@pytest.mark.parametrize("estimator", EVERY.values(), ids=EVERY)
def test_a_copy_goes_on_as_the_original(estimator, copied):
    """In the middle of a stream: the copy's influence is that of the model's parameters, not of copies of them."""
    problem, one = CELLS["gru"](steps=9), estimator()
    for count, (_, state) in enumerate(one.stream(step_of(problem), problem.inputs, problem.state)):  # noqa: B007
        problem.gradients()
        if count == 1:
            break
    results = []
    for again in (copied(one), one):
        (_, *_), *_ = again.stream(step_of(problem), problem.inputs[:3], state)
        results.append(problem.gradients())
    assert all(torch.equal(results[0][name], results[1][name]) for name in problem.parameters)


def test_a_state_of_another_estimator_is_refused():
    saved = UORO().state_dict()
    check(lambda: RTRL().load_state_dict(saved), VALUES, r"UORO\(\).*RTRL\(\)", "estimator that was saved")
    check(lambda: ARTBP(LAW).load_state_dict(ARTBP(LAW, cap=4).state_dict()), VALUES, "cap=4", "was saved")


# ---- the schedule of checkpoints -------------------------------------------------------------------------------------


@lru_cache
def fewest(n, slots):
    if n == 1:
        return 0
    if slots == 0:
        return n * (n - 1) // 2
    return min(y + fewest(n - y, slots - 1) + fewest(y, slots) for y in range(1, n))


def test_the_schedule_is_optimal():
    for n, slots in itertools.product(range(2, 60), range(1, 8)):
        y = split(n, slots)
        assert y + fewest(n - y, slots - 1) + fewest(y, slots) == fewest(n, slots), (n, slots)
        r = next(r for r in itertools.count(1) if math.comb(slots + 1 + r, r) >= n)
        assert fewest(n, slots) == r * n - math.comb(slots + 1 + r, r - 1), (n, slots)  # as the docstring has it


@pytest.mark.parametrize(("windows", "slots"), [(7, 1), (7, 2), (12, 3), (20, 4), (5, 9)])
def test_the_schedule_is_what_runs(windows, slots):
    """Counts the runs of every window, and how many states live at once beside the given one."""
    problem, runs, alive = scalar_linear(steps=windows, lanes=1), [], []
    step = step_of(problem)

    def counted(inputs, state, links):
        runs.append(torch.is_grad_enabled())
        return step(inputs, state, links)

    CheckpointedBPTT(1, slots)(counted, problem.inputs, problem.state)
    assert runs.count(True) == windows
    assert runs.count(False) == fewest(windows, slots)

    class Watched(estimators.checkpointed._Slots):
        def backward(self, *arguments):
            alive.append(sum(state is not None for state in self.states[1:windows]))
            return super().backward(*arguments)

    links = None
    Watched(step, problem.inputs, problem.state, links, list(range(1, windows + 1))).backprop_within(slots)
    assert max(alive) <= slots + 1  # the one that a window begins from is in use, not in store


def test_as_many_slots_as_windows_are_no_recursion():
    problem = scalar_linear(steps=1200, lanes=1)
    expected = whole(BPTT(), problem)[2]
    for slots in (1199, 5000):
        assert relative_error(whole(CheckpointedBPTT(1, slots), problem)[2], expected) < 1e-12


def test_slots_replay_dropout_and_statistics():
    """Random numbers and buffers are those of the first run, however often a window is run again."""
    results = []
    for estimator in (BPTT(), CheckpointedBPTT(1), CheckpointedBPTT(1, slots=2)):
        torch.manual_seed(1)
        cell, norm = torch.nn.GRUCell(2, 3, dtype=torch.float64), torch.nn.BatchNorm1d(3, dtype=torch.float64)

        def one(x, s, cell=cell, norm=norm):
            s = norm(torch.nn.functional.dropout(cell(x, s), 0.5))
            return s.square().sum() + s[:, 0].sum(), s

        inputs = torch.randn(7, 4, 2, dtype=torch.float64)
        estimator(artbp.unroll(one), inputs, torch.zeros(4, 3, dtype=torch.float64))
        results.append([cell.weight_hh.grad, norm.running_mean, norm.running_var, torch.rand(1)])
    for result in results[1:]:
        for found, expected in zip(result, results[0], strict=True):
            torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


# ---- bad input -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("estimator", EVERY.values(), ids=EVERY)
def test_bad_input_is_refused_in_two_parts(estimator):
    problem, errors = CELLS["rnn"](steps=3), (*VALUES, RuntimeError)
    one, step = estimator(), step_of(problem)
    check(lambda: one(step, (), problem.state), errors, "no(thing| tensor)|without a tensor", "Pass inputs")
    check(lambda: one(step, problem.inputs[:0], problem.state), errors, "no steps", "Stop|Pass")
    check(
        lambda: one(lambda x, s, links: (x.sum(), s), torch.ones(3, 2), None),
        errors,
        "does not depend on anything that requires grad",
        "Check that parameters",
    )
    check(lambda: one(lambda x, s, links: x.sum(), torch.ones(3, 2), None), errors, "returned Tensor", "unroll")


def test_bad_arguments():
    check(lambda: TruncatedBPTT(0), VALUES, "got 0", "Pass an int")
    check(lambda: CheckpointedBPTT(0), VALUES, r"CheckpointedBPTT\(window\) got 0", "Pass an int")
    check(lambda: CheckpointedBPTT(2, slots=0), VALUES, r"CheckpointedBPTT\(slots\) got 0", "Pass an int")
    check(lambda: UORO(seed=0, generator=torch.Generator()), VALUES, "both a seed and a generator", "Pass seed=")
    check(lambda: RTRL([torch.ones(3)]), VALUES, "no leaf", r"model.parameters\(\)")
