"""The GPU's path on the CPU, its Triton kernels in Triton's interpreter: arithmetic, masks, and what is left unwritten.

Not collected by itself: `test_ops_triton.py` runs it in a process of its own, for Triton reads TRITON_INTERPRET when it
is imported. Here a scan gets one program per block of lanes, for the interpreter runs one program after the other; one
test lets several run at once, each in a thread. What only a GPU can show stands in `test_ops_gpu.py`.
"""

from __future__ import annotations

import ctypes
import inspect
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext

import numpy as np
import pytest
import torch
import triton.language as tl
from recurrences import beside, distance, draw, evaluate, specified
from torch import Tensor
from triton.runtime import interpreter

from artbp.ops import _graphs, _scan, _scan_kernels, fused, naive
from artbp.ops._types import MODES

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # exp of a large number, masked out later

SIZES = [(1, 1, 1, 1), (4, 3, 2, 20), (2, 17, 3, 33), (3, 2, 4, 16)]  # (T, B, I, H)
TOLERANCE = {torch.float32: 1e-6, torch.bfloat16: 1e-2}
CASES = [(form, size) for form in ("scan, weight held", "scan", "graphs") for size in SIZES]
CASES.remove(("graphs", SIZES[2]))  # several blocks of lanes has only the scan


@pytest.fixture(autouse=True)
def numpy_2(monkeypatch):
    """NumPy 2 makes no index of an array of one element, which Triton 3.6 still asks for."""
    patch = interpreter._patch_lang_tensor

    def patched(tensor, scope):
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    monkeypatch.setattr(interpreter, "_patch_lang_tensor", patched)


@pytest.fixture(autouse=True)
def masks_stay_bool(monkeypatch):
    """Triton 3.9 spreads a comparison of two numbers over a block as int32, and then takes no such mask."""
    builder = interpreter.InterpreterBuilder
    splat = builder.create_splat

    def patched(self, kind, value):
        block = splat(self, kind, value)
        if value.data.dtype == bool:
            block.data = block.data.astype(bool)
        return block

    monkeypatch.setattr(builder, "create_splat", patched)


@pytest.fixture(autouse=True)
def bfloat16(monkeypatch):
    """The interpreter keeps bfloat16 as 16 bits of an integer, truncates to it, and multiplies the integers."""
    builder = interpreter.InterpreterBuilder
    cast, dot = builder.cast_impl, builder.create_dot

    def patched_cast(self, source, kind):
        if (source.dtype.scalar, kind.scalar) == (tl.float32, tl.bfloat16):
            rounded = torch.from_numpy(np.array(source.data)).bfloat16().view(torch.int16).numpy()
            return interpreter.TensorHandle(rounded.view(np.uint16), tl.bfloat16)
        return cast(self, source, kind)

    def patched_dot(self, a, b, *rest):
        wide = [cast(self, x, tl.float32) if x.dtype.scalar == tl.bfloat16 else x for x in (a, b)]
        return dot(self, *wide, *rest)

    monkeypatch.setattr(builder, "cast_impl", patched_cast)
    monkeypatch.setattr(builder, "create_dot", patched_dot)


runners: dict[tuple[object, ...], _graphs._Runner] = {}  # and what they hold, from test to test, as from call to call


@pytest.fixture(autouse=True)
def without_a_gpu(monkeypatch):
    """The path's own code around the kernels, but for what it asks of CUDA; steps go directly, as inside a capture."""

    @contextmanager
    def runner(*key):
        *shape, weight, kind = key
        if (*shape, kind) not in runners:
            runners[*shape, kind] = _graphs._Runner(*shape, weight)
            runners[*shape, kind].warm_up()
        yield runners[*shape, kind]

    monkeypatch.setattr(_graphs, "_runner", runner)
    monkeypatch.setattr(fused, "_arithmetic", lambda kind, device: nullcontext())
    monkeypatch.setattr(fused, "_kind", lambda x: "bf16" if x.dtype == torch.bfloat16 else "fp32")
    monkeypatch.setattr(fused, "_captured", [])
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    monkeypatch.setattr(_graphs, "_WIDE_OUT", False)


@pytest.fixture(autouse=True)
def poisoned():
    """Whatever torch.empty hands out is nan: a kernel that leaves a hole cannot pass."""
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture
def path(request, monkeypatch):
    """A form by its name; a scan in one program for all units."""
    hold = request.param != "scan"

    def blocks(mode, direction, kind, B, H, device):
        length = max(16, 1 << (_scan.part(mode, H) - 1).bit_length())
        return _scan.Blocks(16, max(16, 1 << (H - 1).bit_length()), length if hold else 16, 4, hold)

    monkeypatch.setattr(_scan, "blocks", blocks)
    return fused.graphs if request.param == "graphs" else fused.scan


either_form = pytest.mark.parametrize("path", ["scan, weight held", "graphs"], indirect=True)
every_mode = pytest.mark.parametrize("mode", MODES)


@pytest.mark.parametrize(("path", "size"), CASES, ids=str, indirect=["path"])
@every_mode
def test_outputs_and_gradients_are_the_specifications(size, mode, path):
    problem = draw(mode, *size, links="lanes", dtype=torch.float32, seed=3)
    if size[0] > 1:
        problem.links[size[0] // 2, ::2] = 0.0
    assert distance(evaluate(path, problem, torch.float32), specified(problem)) < TOLERANCE[torch.float32]


@either_form
@every_mode
@pytest.mark.parametrize("links", ["none", "shared", "uncompensated", "compensated lanes"])
def test_links_of_every_kind_and_layers_without_biases(links, mode, path):
    problem = draw(mode, 4, 2, 3, 5, links=links, bias=False, dtype=torch.float32)
    assert distance(evaluate(path, problem, torch.float32), specified(problem)) < TOLERANCE[torch.float32]


@either_form
@every_mode
def test_storage_in_bfloat16(mode, path):
    """Within what rounding explains."""
    problem = draw(mode, 4, 3, 4, 20, links="compensated lanes", dtype=torch.bfloat16)
    found = evaluate(path, problem, torch.bfloat16)
    assert distance(found, evaluate(beside(found[0]), problem)) < TOLERANCE[torch.bfloat16]


def states(mode: str) -> list[str]:
    return ["h", "c"] if mode == "LSTM" else ["h"]


@either_form
@pytest.mark.parametrize(("mode", "asked"), [(mode, name) for mode in MODES for name in ["y", *states(mode)]])
def test_gradients_of_one_output_alone(mode, asked, path):
    """What is not asked for arrives as None: neither read from memory nor taken for the other state's."""
    problem = draw(mode, 4, 3, 2, 5, links="compensated lanes", dtype=torch.float32)
    which = ["y", *states(mode)].index(asked)

    def gradients(path, dtype: torch.dtype) -> list[Tensor]:
        leaves = [tensor.to(dtype).requires_grad_() for tensor in problem.inputs]
        last = 1 + len(problem.hx)
        y, final = path(mode, leaves[0], tuple(leaves[1:last]), tuple(leaves[last:]), problem.links)
        adjoint = problem.adjoints[which].to(dtype)
        return list(torch.autograd.grad((y, *final)[which], leaves, adjoint, materialize_grads=True))

    expected = gradients(naive.recurrence, torch.float64)
    assert distance(gradients(path, torch.float32), expected) < TOLERANCE[torch.float32]


@pytest.mark.parametrize("path", ["scan, weight held"], indirect=True)
@every_mode
def test_each_input_may_be_the_only_one_that_needs_a_gradient(mode, path):
    problem = draw(mode, 2, 2, 3, 5, links="compensated lanes", dtype=torch.float32)
    states = len(problem.hx)
    expected = specified(problem)[1 + states :]
    for i, exact in enumerate(expected):
        leaves = [tensor.float().requires_grad_(k == i) for k, tensor in enumerate(problem.inputs)]
        y, final = path(mode, leaves[0], tuple(leaves[1 : 1 + states]), tuple(leaves[1 + states :]), problem.links)
        adjoints = [adjoint.float() for adjoint in problem.adjoints]
        (found,) = torch.autograd.grad((y, *final), leaves[i], adjoints)
        assert distance([found], [exact]) < TOLERANCE[torch.float32], i


@either_form
@every_mode
@pytest.mark.parametrize("shared", [False, True])
def test_nothing_crosses_a_cut(mode, path, shared):
    problem = draw(mode, 6, 3, 4, 5, links="none", dtype=torch.float32)
    links = torch.ones(6, 3, dtype=torch.float64)
    links[3, 1] = links[0, 2] = 0.0
    lanes = slice(None) if shared else 1
    if shared:
        links = links.prod(dim=1)
    x, *rest = (tensor.float().requires_grad_() for tensor in problem.inputs)
    y, _ = path(mode, x, tuple(rest[: len(problem.hx)]), tuple(rest[len(problem.hx) :]), links)
    arriving = torch.ones_like(y)
    arriving[4, 1], arriving[2, 2] = float("inf"), float("nan")
    d_x, *d_states = torch.autograd.grad(y, [x, *rest[: len(problem.hx)]], arriving)
    assert d_x[:3, 1].isfinite().all()
    assert not d_x[4, 1].isfinite().all()
    assert d_x[:, 0].isfinite().all()
    for state in d_states:
        assert (state[2] == 0).all()
        assert state[lanes].isfinite().all()


@either_form
@every_mode
def test_links_near_one_are_not_swallowed(mode, path):
    """A state that keeps its content passes its adjoint on, times 1.0015 at each of 20 steps."""
    T, H, dtype = 20, 2, torch.bfloat16
    gates = {"LSTM": 4, "GRU": 3}.get(mode, 1)
    w_hh, bias = torch.zeros(gates * H, H), torch.zeros(gates, H)
    content = 0.5
    if mode == "LSTM":
        bias[0], bias[1] = -40.0, 40.0
    elif mode == "GRU":
        bias[1] = 40.0
    else:  # the identity, which every power of two passes unrounded; tanh has slope one at zero
        w_hh, content = torch.eye(H), 0.0 if mode == "RNN_TANH" else 0.5
    hx = tuple(torch.full((1, H), content, dtype=dtype, requires_grad=True) for _ in states(mode))
    weights = (torch.zeros(gates * H, 1), w_hh, bias.flatten(), torch.zeros(gates * H))
    links = torch.full((T,), 1.0015, dtype=torch.float64)
    x = torch.zeros(T, 1, 1, dtype=dtype)
    _, final = path(mode, x, hx, tuple(weight.to(dtype) for weight in weights), links)
    (found,) = torch.autograd.grad(final[-1].float().sum(), hx[-1:])
    torch.testing.assert_close(found.double(), torch.full((1, H), 1.0015**T).double(), rtol=5e-3, atol=0)


@pytest.fixture
def concurrent(monkeypatch):
    """All programs of a launch at once, each in a thread; what waits for a counter lets the others go on."""
    here = threading.local()

    def program(self, axis):
        return interpreter.TensorHandle(np.array([here.index[axis]], dtype=np.int32), tl.int32)

    def launch(self, *args, **kwargs):
        known = {name: value for name, value in kwargs.items() if name in inspect.getfullargspec(self.fn).args}
        scope = interpreter._patch_lang(self.fn)
        given = inspect.getcallargs(self.fn, *args, **known)
        given = {k: v if k in self.constexprs else interpreter._implicit_cvt(v) for k, v in given.items()}
        interpreter.interpreter_builder.set_grid_dim(*self.grid, 1)

        def run(index):
            here.index = index
            self.fn(**given)

        indices = list(np.ndindex(*self.grid))
        launched.append(len(indices))
        try:
            with ThreadPoolExecutor(len(indices)) as pool:
                list(pool.map(run, indices))
        finally:
            scope.restore()

    def wait(counter, target, SYNC):
        arrived = ctypes.c_int32.from_address(int(counter.handle.data.item()))
        deadline = time.monotonic() + 60
        while arrived.value < int(target):
            assert time.monotonic() < deadline, f"{arrived.value} of {int(target)} programs arrived"
            time.sleep(1e-4)

    launched: list[int] = []
    monkeypatch.setattr(interpreter.InterpreterBuilder, "create_get_program_id", program)
    monkeypatch.setattr(interpreter.GridExecutor, "__call__", launch)
    monkeypatch.setattr(_scan_kernels, "wait", wait)
    return launched


@every_mode
def test_programs_exchange_what_the_others_need(mode, monkeypatch, concurrent):
    """Three blocks of units, two of lanes."""
    monkeypatch.setattr(_scan, "blocks", lambda *problem: _scan.Blocks(16, 16, 16, 4, hold=False))
    problem = draw(mode, 4, 17, 3, 41, links="compensated lanes", dtype=torch.float32)
    found = evaluate(fused.scan, problem, torch.float32)
    assert concurrent == [6, 6]
    assert distance(found, specified(problem)) < TOLERANCE[torch.float32]
