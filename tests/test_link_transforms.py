"""link under what torch does to functions: higher derivatives, forward mode, functorch, compile, in-place."""

import math

import pytest
import torch
from torch.autograd import forward_ad
from torch.func import functional_call, grad, jacfwd, jacrev, vmap
from torch.fx.experimental.proxy_tensor import make_fx

import artbp

LANES = torch.tensor([0.0, 1.0, 1.75], dtype=torch.float64)

# What torch says about itself when forward mode, or the compiler, is first used.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning"),
]


def leaf(*shape, dtype=torch.float64, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype).requires_grad_()


# ---- derivatives of every kind ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("factor", [1.75, LANES], ids=["number", "lanes"])
def test_double_backward(factor):
    """f(link(x)) = link(x)³: the first derivative is λ·3x², the second λ²·6x."""
    x = leaf(3)
    (first,) = torch.autograd.grad(artbp.link(x, factor).pow(3).sum(), x, create_graph=True)
    torch.testing.assert_close(first, factor * 3 * x**2)
    (second,) = torch.autograd.grad(first.sum(), x)
    torch.testing.assert_close(second, torch.as_tensor(factor) ** 2 * 6 * x.detach())


@pytest.mark.parametrize("factor", [1.75, LANES], ids=["number", "lanes"])
def test_the_backward_itself_is_differentiable(factor):
    """The gradient is linear in what arrives, with the factor as its slope, to any order."""
    x, arriving = leaf(3), leaf(3, seed=1)
    (first,) = torch.autograd.grad(artbp.link(x, factor), x, arriving, create_graph=True)
    (slope,) = torch.autograd.grad(first.sum(), arriving)
    torch.testing.assert_close(slope, torch.as_tensor(factor, dtype=torch.float64).expand(3))


@pytest.mark.parametrize("factor", [1.75, 0.0, LANES, torch.tensor(1.75)], ids=["number", "zero", "lanes", "tensor0"])
def test_forward_mode(factor):
    """The tangent takes the same factor as the gradient: the Jacobian is λ·I in both modes."""
    x, tangent = torch.randn(3, dtype=torch.float64), torch.randn(3, dtype=torch.float64)
    with forward_ad.dual_level():
        out = artbp.link({"h": forward_ad.make_dual(x, tangent)}, factor)["h"]
        primal, found = forward_ad.unpack_dual(out)
        expected = torch.as_tensor(factor, dtype=torch.float64) * tangent
        assert torch.equal(primal, x)
        torch.testing.assert_close(torch.zeros(3, dtype=torch.float64) if found is None else found, expected)


def test_forward_mode_zero_entry():
    with forward_ad.dual_level():
        out = artbp.link(forward_ad.make_dual(torch.ones(3), torch.full((3,), math.inf)), LANES)
        assert forward_ad.unpack_dual(out).tangent[0].item() == 0.0


@pytest.mark.parametrize("factor", [1.75, LANES], ids=["number", "lanes"])
def test_functorch_grad_and_jacobians(factor):
    x = torch.randn(3, dtype=torch.float64)
    diagonal = torch.diag(torch.as_tensor(factor, dtype=torch.float64).expand(3))
    torch.testing.assert_close(grad(lambda x: artbp.link(x, factor).sum())(x), diagonal.diagonal())
    torch.testing.assert_close(jacrev(lambda x: artbp.link(x, factor))(x), diagonal)
    torch.testing.assert_close(jacfwd(lambda x: artbp.link(x, factor))(x), diagonal)
    second = jacrev(grad(lambda x: artbp.link(x, factor).pow(3).sum()))(x)
    torch.testing.assert_close(second, torch.diag(torch.as_tensor(factor, dtype=torch.float64) ** 2 * 6 * x))


def test_vmap_over_states():
    states = torch.randn(5, 3, dtype=torch.float64)
    for factor in (1.75, LANES):
        per_sample = vmap(grad(lambda x, factor=factor: artbp.link(x, factor).pow(2).sum()))(states)
        torch.testing.assert_close(per_sample, torch.as_tensor(factor, dtype=torch.float64) * 2 * states)
    assert torch.equal(vmap(lambda x: artbp.link(x, 0.0))(states), states)


def test_vmap_over_states_and_factors():
    states, factors = torch.randn(5, 3, dtype=torch.float64), torch.rand(5, 3, dtype=torch.float64)
    factors[0, 0] = 0.0
    found = vmap(grad(lambda x, factor: artbp.link(x, factor).pow(2).sum()))(states, factors)
    torch.testing.assert_close(found, factors * 2 * states)


def test_vmap_over_a_number_per_sample():
    """Inside vmap a (5,) tensor of factors is five 0-dim ones, whose values nobody can look at."""
    states = torch.randn(5, 3, dtype=torch.float64)
    factors = torch.tensor([0.0, 1.0, 2.0, 0.5, 3.0], dtype=torch.float64)
    found = vmap(grad(lambda x, factor: artbp.link(x, factor).pow(2).sum()))(states, factors)
    torch.testing.assert_close(found, factors[:, None] * 2 * states)


def test_per_sample_gradients_of_a_cell():
    cell = torch.nn.GRUCell(2, 3, dtype=torch.float64)
    parameters = {name: parameter.detach() for name, parameter in cell.named_parameters()}
    inputs, states = torch.randn(4, 2, dtype=torch.float64), torch.randn(4, 3, dtype=torch.float64)

    def loss(parameters, x, h):
        for factor in (1.0, 1.5, 2.0):
            h = functional_call(cell, parameters, (x[None], artbp.link(h[None], factor)))[0]
        return h.sum()

    per_sample = vmap(grad(loss), in_dims=(None, 0, 0))(parameters, inputs, states)
    for lane in range(4):
        alone = grad(loss)(parameters, inputs[lane], states[lane])
        for name in parameters:
            torch.testing.assert_close(per_sample[name][lane], alone[name])


def test_complex_states():
    state = torch.randn(3, dtype=torch.complex128, requires_grad=True)
    for factor in (1.75, LANES):
        state.grad = None
        linked = artbp.link(state, factor)
        (linked.abs() ** 2).sum().backward()
        torch.testing.assert_close(state.grad, torch.as_tensor(factor) * 2 * state.detach())
    state.grad = None
    artbp.link(state, LANES).backward(torch.full((3,), complex(math.inf, math.nan), dtype=torch.complex128))
    assert state.grad[0] == 0


@pytest.mark.filterwarnings("ignore:ComplexHalf support:UserWarning")
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_half_precision_complex_states(dim):
    state = torch.ones(3, 3, dtype=torch.complex32, requires_grad=True)
    linked = artbp.link(state, LANES, dim=dim)
    linked.backward(torch.full((3, 3), 1 + 2j).to(torch.complex32))
    along = LANES[:, None] if dim == 0 else LANES[None, :]
    assert torch.equal(state.grad.to(torch.complex128), along.expand(3, 3) * (1 + 2j))


# ---- torch.compile ---------------------------------------------------------------------------------------------------


def _steps(backend):
    cell = torch.nn.LSTMCell(2, 3)
    torch._dynamo.reset()
    eager = lambda x, state, factor: cell(x, artbp.link(state, factor))  # noqa: E731 - the very function is compiled
    return cell, eager, torch.compile(eager, fullgraph=True, backend=backend)


def _gradients(cell, step, factors):
    x, h, c = (
        torch.ones(3, 2),
        torch.full((3, 3), 0.3, requires_grad=True),
        torch.full((3, 3), -0.2, requires_grad=True),
    )
    state = (h, c)
    for factor in factors:
        state = step(x, state, factor)
    leaves = [*cell.parameters(), h, c]
    gradients = torch.autograd.grad(state[0].sum() + state[1].square().sum(), leaves, allow_unused=True)
    return [
        torch.zeros_like(leaf) if gradient is None else gradient
        for leaf, gradient in zip(leaves, gradients, strict=True)
    ]


BACKENDS = ["eager", "aot_eager", pytest.param("inductor", marks=pytest.mark.slow)]


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("form", ["numbers", "lanes", "zero-dim"])
def test_compile_without_a_graph_break(backend, form):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        cell, eager, compiled = _steps(backend)
    numbers = [1.0, 1.25, 0.0, 1.5, 1.125]
    factors = {
        "numbers": numbers,
        "lanes": [torch.tensor([number, 0.0, 2.0], dtype=torch.float64) for number in numbers],
        "zero-dim": [torch.tensor(number, dtype=torch.float64) for number in numbers],
    }[form]
    for found, expected in zip(_gradients(cell, compiled, factors), _gradients(cell, eager, factors), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_compiled_lanes_do_not_recompile():
    counter = torch._dynamo.testing.CompileCounter()
    _, _, compiled = _steps(counter)
    state = (torch.zeros(3, 3, requires_grad=True), torch.zeros(3, 3, requires_grad=True))
    for number in (1.0, 1.25, 0.0, 1.5):
        compiled(torch.ones(3, 2), state, torch.full((3,), number, dtype=torch.float64))
    assert counter.frame_count == 1


@pytest.mark.parametrize("mode", ["real", "fake", "symbolic"])
@pytest.mark.parametrize("factor", [1.75, LANES, torch.tensor(1.75)], ids=["number", "lanes", "zero-dim"])
def test_traced_into_a_graph(mode, factor):
    """No value of a factor is looked at, backward too: what is traced holds for the next one."""

    def function(x, factor):
        return torch.autograd.grad(artbp.link(x, factor).square().sum(), x)[0]

    x = leaf(3, 3)
    graph = make_fx(function, tracing_mode=mode)(x, factor)
    for other in [factor, factor * 0.0] if isinstance(factor, torch.Tensor) else [factor]:
        along = torch.as_tensor(other, dtype=torch.float64)
        along = along[:, None] if along.dim() else along
        torch.testing.assert_close(graph(x, other), along * 2 * x.detach())


# ---- autocast and in-place -------------------------------------------------------------------------------------------


def test_autocast():
    cell, state = torch.nn.LSTMCell(4, 8), (leaf(3, 8, dtype=torch.float32), leaf(3, 8, dtype=torch.float32, seed=1))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        h, c = cell(torch.ones(3, 4), artbp.link(state, LANES))
    (h.float().sum() + c.float().sum()).backward()
    for part in state:
        assert part.grad.dtype == torch.float32
        assert not part.grad[0].any()
        assert part.grad[1:].all()


def test_autocast_keeps_the_dtype_of_the_state():
    for dtype in (torch.float32, torch.bfloat16):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert artbp.link(torch.ones(3, dtype=dtype, requires_grad=True), 1.5).dtype == dtype


@pytest.mark.parametrize("factor", [1.0, 1.75, LANES], ids=["one", "number", "lanes"])
def test_in_place_on_a_linked_state(factor):
    """Either torch refuses, or value and gradient belong together: `linked` is a copy of `hidden`, or it is `hidden`.

    (A number 0 is torch's own `detach`, whose rules for in-place operations hold.)
    """
    x, along = leaf(3), torch.as_tensor(factor, dtype=torch.float64)
    hidden = x * 2.0
    try:
        linked = artbp.link(hidden, factor)
        linked.mul_(3.0)
        (linked.sum() + hidden.sum()).backward()
    except RuntimeError as error:
        refused = str(error)
        assert "in-place" in refused or "inplace" in refused
        return
    tripled = not torch.equal(hidden, x.detach() * 2.0)
    torch.testing.assert_close(x.grad, (along * 6.0 + (along * 6.0 if tripled else 2.0)).expand(3))


@pytest.mark.parametrize("factor", [1.0, 1.75, 0.0, LANES], ids=["one", "number", "zero", "lanes"])
def test_in_place_behind_a_function_that_saved_its_output(factor):
    """exp saved its result: changing it through the linked state must not change the gradient in silence."""
    x = leaf(3)
    hidden = x.exp()
    try:
        linked = artbp.link(hidden, factor)
        linked.mul_(3.0)
        (linked.sum() + hidden.sum()).backward()
    except RuntimeError as error:
        refused = str(error)
        assert "in-place" in refused or "inplace" in refused
        return
    along = torch.as_tensor(factor, dtype=torch.float64)
    torch.testing.assert_close(x.grad, (along * 3.0 + 1.0) * x.detach().exp())


def test_in_place_on_a_pair():
    h, c = leaf(3), leaf(3, seed=1)
    try:
        a, b = artbp.link((h * 1.0, c * 1.0), LANES)
        a.add_(b)
        a.mul_(2.0)
        (a.sum() + b.sum()).backward()
    except RuntimeError as error:
        refused = str(error)
        assert "in-place" in refused or "inplace" in refused
        return
    torch.testing.assert_close(h.grad, 2.0 * LANES)
    torch.testing.assert_close(c.grad, 3.0 * LANES)


def test_saved_and_unpacked_by_hooks():
    """Offloading of saved tensors sees nothing unexpected."""
    x = leaf(3, 3)
    with torch.autograd.graph.save_on_cpu():
        linked = artbp.link(x.tanh(), LANES)
        linked.square().sum().backward()
    assert not x.grad[0].any()
    assert x.grad[1:].all()


def test_in_checkpointed_functions():
    x = leaf(3, 3)
    function = lambda x: artbp.link(x.tanh(), LANES).square().sum()  # noqa: E731
    (plain,) = torch.autograd.grad(function(x), x)
    (again,) = torch.autograd.grad(torch.utils.checkpoint.checkpoint(function, x, use_reentrant=False), x)
    assert torch.equal(plain, again)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch's own tracing
@pytest.mark.parametrize("factor", [1.25, torch.tensor([0.5, 1.25, 0.0], dtype=torch.float64)], ids=["number", "lanes"])
def test_compile_from_a_state_without_a_gradient(factor):
    """The first steps of a run: nothing requires grad yet but the weights."""
    cell = torch.nn.LSTMCell(2, 3)

    def two(x, state):
        for _ in range(2):
            state = cell(x, artbp.link(state, factor))
        return state

    found = []
    for step in (two, torch.compile(two, fullgraph=True, backend="aot_eager")):
        state = step(torch.ones(3, 2), (torch.zeros(3, 3), torch.zeros(3, 3)))
        state = step(torch.ones(3, 2), state)
        found.append(torch.autograd.grad(state[0].sum(), cell.weight_hh)[0])
    torch.testing.assert_close(found[1], found[0])
