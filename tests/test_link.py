"""link: the identity forward, a factor backward, over any state tree."""

import collections
import dataclasses
import gc
import math
import weakref
from typing import Any, NamedTuple

import pytest
import torch

import artbp

SPECIAL = [0.0, -0.0, 1.5, math.inf, -math.inf, math.nan, 5e-324, -1e308]


def bits(tensor):
    return tensor.detach().contiguous().view(torch.uint8)


def leaf(*shape, dtype=torch.float64, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype).requires_grad_()


FACTORS = {
    "number": 1.75,
    "zero": 0.0,
    "one": 1.0,
    "integer": 2,
    "tensor0": torch.tensor(1.75, dtype=torch.float64),
    "tensor0_zero": torch.tensor(0.0, dtype=torch.float64),
    "lanes": torch.tensor([0.0, 1.0, 1.75], dtype=torch.float64),
    "lanes32": torch.tensor([0.0, 1.0, 1.75]),
}


# ---- numbers -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("factor", FACTORS.values(), ids=FACTORS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.complex64])
def test_forward_is_the_identity_to_the_bit(dtype, factor):
    state = torch.tensor([SPECIAL] * 3, dtype=torch.float64).to(dtype).requires_grad_()
    linked = artbp.link(state, factor)
    assert linked.dtype == dtype
    assert torch.equal(bits(linked), bits(state))


@pytest.mark.parametrize("factor", FACTORS.values(), ids=FACTORS)
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_backward_is_the_factor(factor, dim):
    state = leaf(3, 3)
    weight = leaf(3, 3, seed=1).detach()
    linked = artbp.link(state, factor, dim=dim)
    along = torch.as_tensor(factor, dtype=torch.float64)
    expected = weight * (along if along.ndim == 0 else along[:, None] if dim == 0 else along[None, :])
    if linked.requires_grad:
        (linked * weight).sum().backward()
        assert torch.equal(state.grad, expected)
    else:
        assert not expected.any()


def test_dim_counts_from_the_batch_of_a_torch_state():
    h, c = leaf(2, 3, 4), leaf(2, 3, 4, seed=1)
    factor = torch.tensor([0.0, 1.0, 3.0], dtype=torch.float64)
    a, b = artbp.link((h, c), factor, dim=1)
    (a + 2 * b).sum().backward()
    assert torch.equal(h.grad, factor[None, :, None].expand(2, 3, 4))
    assert torch.equal(c.grad, 2 * factor[None, :, None].expand(2, 3, 4))


def test_one_dimensional_states_take_lanes_too():
    state = leaf(3)
    artbp.link(state, FACTORS["lanes"]).sum().backward()
    assert torch.equal(state.grad, FACTORS["lanes"])


def test_one_is_a_no_op():
    state = leaf(3)
    linked = artbp.link({"h": state * 2}, 1.0)["h"]
    assert linked.grad_fn.name() == "MulBackward0"  # nothing stands between
    assert artbp.link(state, 1) is state


@pytest.mark.parametrize("zero", [0, 0.0, -0.0, torch.tensor(0.0), torch.tensor(0.0, dtype=torch.float64)])
def test_zero_detaches(zero):
    first, second = artbp.link((leaf(3), leaf(3, 4)), zero)
    assert not first.requires_grad
    assert not second.requires_grad


def test_zero_frees_the_graph():
    class Marker:
        pass

    class Remembers(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.marker = Marker()
            alive.append(weakref.ref(ctx.marker))
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            return gradient

    alive = []
    parameter, state, states = leaf(4), torch.zeros(4, dtype=torch.float64), []
    for t in range(6):
        state = Remembers.apply(artbp.link(state, 0.0 if t == 3 else 1.5) + parameter)
        states.append(state.detach())
    gc.collect()
    assert [marker() is not None for marker in alive] == [False] * 3 + [True] * 3


@pytest.mark.parametrize("arriving", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_a_zero_entry_is_an_exact_zero_whatever_arrives(dtype, arriving):
    state = torch.ones(3, 2, dtype=dtype, requires_grad=True)
    linked = artbp.link(state, FACTORS["lanes"])
    linked.backward(torch.full((3, 2), arriving, dtype=dtype))
    assert torch.equal(state.grad[0], torch.zeros(2, dtype=dtype))
    assert not torch.isfinite(state.grad[1:]).any()


def test_a_zero_entry_through_an_overflowing_function():
    state = torch.tensor([800.0, 1.0], dtype=torch.float64, requires_grad=True)
    linked = artbp.link(state, torch.tensor([0.0, 2.0], dtype=torch.float64))
    linked.exp().sum().backward()  # inf arrives in lane 0
    assert state.grad.tolist() == [0.0, pytest.approx(2 * math.e)]


# ---- trees ---------------------------------------------------------------------------------------------------------


class Pair(NamedTuple):
    h: torch.Tensor
    c: torch.Tensor


@dataclasses.dataclass(frozen=True)
class Frozen:
    h: torch.Tensor
    label: str
    inner: Any = None
    derived: int = dataclasses.field(init=False, default=7)


@dataclasses.dataclass
class Mutable:
    h: torch.Tensor
    memory: list = dataclasses.field(default_factory=list)


class Opaque:
    """Not a tree; has tensors inside that are nobody's business."""

    def __init__(self):
        self.inside = leaf(2)


def test_every_kind_of_tree():
    a, b, c, d, e, f = (leaf(3, seed=seed) for seed in range(6))
    opaque, number, name = Opaque(), 12345678, "name"
    tree = {
        "pair": Pair(a * 1, b * 1),
        "frozen": Frozen(c * 1, name, inner=(None, [d * 1, number])),
        3: Mutable(e * 1, [f * 1]),
        "opaque": opaque,
        "empty": (),
        "nothing": None,
        "true": True,
    }
    linked = artbp.link(tree, 2.5)
    assert list(linked) == list(tree)
    assert type(linked["pair"]) is Pair
    assert type(linked["frozen"]) is Frozen
    assert type(linked[3]) is Mutable
    assert type(linked["frozen"].inner) is tuple
    assert type(linked["frozen"].inner[1]) is list
    assert linked["frozen"].label is name
    assert linked["frozen"].derived == 7
    assert linked["frozen"].inner[1][1] is number
    assert linked["opaque"] is opaque
    assert linked["empty"] == ()
    assert linked["nothing"] is None
    assert linked["true"] is True
    assert linked[3] is not tree[3]  # the caller's own tree stays as it was
    parts = [
        linked["pair"].h,
        linked["pair"].c,
        linked["frozen"].h,
        linked["frozen"].inner[1][0],
        linked[3].h,
        linked[3].memory[0],
    ]
    sum((k + 1) * part.sum() for k, part in enumerate(parts)).backward()
    assert [part.grad[0].item() for part in (a, b, c, d, e, f)] == [2.5 * (k + 1) for k in range(6)]


def test_a_frozen_dataclass_keeps_a_field_that_its_constructor_does_not_take():
    state = Frozen(leaf(2), "x")
    object.__setattr__(state, "derived", 99)
    for result in (artbp.link(state, 0.5), artbp.detach(state), artbp.link(state, 0.0)):
        assert result.derived == 99
        assert result.label == "x"


@dataclasses.dataclass
class Remembers:
    h: torch.Tensor

    def __post_init__(self):
        self.aside = "not a field"


def test_containers_keep_what_their_constructors_do_not_take():
    for result in (artbp.link(Remembers(leaf(2)), 0.5), artbp.detach(Remembers(leaf(2)))):
        assert result.aside == "not a field"
    counted = collections.defaultdict(list, {"h": leaf(2)})
    linked = artbp.link(counted, 0.5)
    assert type(linked) is collections.defaultdict
    assert linked["missing"] == []
    assert "missing" not in counted
    ordered = artbp.link(collections.OrderedDict(b=leaf(2), a=leaf(2)), 0.5)
    assert type(ordered) is collections.OrderedDict
    assert list(ordered) == ["b", "a"]


def test_integer_tensors_pass_through():
    counts, mask, state = torch.arange(3), torch.tensor([True, False, True]), leaf(3)
    for factor in (0.5, 0.0, FACTORS["lanes"]):
        linked = artbp.link({"h": state, "counts": counts, "mask": mask}, factor)
        assert torch.equal(linked["counts"], counts)
        assert torch.equal(linked["mask"], mask)
        assert linked["counts"].dtype == torch.int64
        assert not linked["counts"].requires_grad


def test_one_function_for_the_whole_state():
    h, c = artbp.link((leaf(3), leaf(3)), 1.5)
    assert h.grad_fn is c.grad_fn


def test_only_part_of_the_state_is_used():
    h, c = leaf(3), leaf(3)
    for factor in (1.5, FACTORS["lanes"]):
        h.grad = c.grad = None
        linked, _ = artbp.link((h, c), factor)
        linked.sum().backward()
        assert h.grad is not None
        assert c.grad is None or not c.grad.any()


def test_part_of_the_state_needs_no_gradient():
    h, c = leaf(3), leaf(3).detach()
    linked_h, linked_c = artbp.link((h, c), 1.5)
    (linked_h * linked_c).sum().backward()
    assert torch.equal(h.grad, 1.5 * c)
    assert c.grad is None


def test_mixed_dtypes_in_one_state():
    h, c = leaf(3, dtype=torch.float32), leaf(3)
    a, b = artbp.link((h, c), torch.tensor([1.5, 0.0, 3.0], dtype=torch.float64))
    (a.sum() + b.sum()).backward()
    assert h.grad.dtype == torch.float32
    assert h.grad.tolist() == c.grad.tolist() == [1.5, 0.0, 3.0]


def test_detach_keeps_values_and_shape_of_the_tree():
    tree = {"h": (leaf(3) * 2, None), "n": 3}
    detached = artbp.detach(tree)
    assert not detached["h"][0].requires_grad
    assert torch.equal(detached["h"][0], tree["h"][0])
    assert detached["h"][1] is None
    assert detached["n"] == 3
    assert artbp.detach(None) is None


def test_states_without_gradients_cost_nothing_and_change_nothing():
    state = torch.ones(3)
    for factor in FACTORS.values():
        assert torch.equal(artbp.link(state, factor), state)
        assert not artbp.link(state, factor).requires_grad
    with torch.no_grad():
        assert not artbp.link(leaf(3), 2.0).requires_grad
    with torch.inference_mode():
        assert torch.equal(artbp.link(torch.ones(3), 2.0), torch.ones(3))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.complex64])
@pytest.mark.parametrize("factor", FACTORS.values(), ids=FACTORS)
def test_no_value_of_a_device_is_waited_for(factor, dtype):
    """The meta device has no values: whatever would read one, and so wait for an accelerator, raises."""
    state = torch.ones(3, 4, dtype=dtype, device="meta", requires_grad=True)
    linked = artbp.link(state, factor)
    if linked.requires_grad:
        linked.backward(torch.ones(3, 4, dtype=dtype, device="meta"))
        assert state.grad.device.type == "meta"


# ---- low precision -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["number", "lanes"])
def test_a_bf16_state_carries_the_accumulated_weight(form):
    """1.0015 over 2,000 steps is 20.05; a bf16 gradient times 1.0015, rounded to nearest, stays 1.0 for ever.

    4,096 entries; each carries some 7% of rounding noise if it is rounded without bias, so their mean is known to 0.1%.
    """
    torch.manual_seed(0)
    start = torch.zeros(64, 64, dtype=torch.bfloat16, requires_grad=True)
    factor = 1.0015 if form == "number" else torch.full((64,), 1.0015, dtype=torch.float64)
    state = start
    for _ in range(2000):
        state = artbp.link(state, factor)
    state.float().sum().backward()
    assert start.grad.float().mean().item() == pytest.approx(1.0015**2000, rel=0.01)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_precision_is_unbiased_per_step(dtype):
    """One link of 1 + 2^-12 on n = 262,144 gradients of 1: mean within 20% of the excess (5 sigma are 16% in bf16)."""
    torch.manual_seed(0)
    start = torch.zeros(512, 512, dtype=dtype, requires_grad=True)
    artbp.link(start, 1.0 + 2.0**-12).float().sum().backward()
    assert start.grad.double().mean().item() - 1.0 == pytest.approx(2.0**-12, rel=0.2)
    assert len(start.grad.unique()) <= 2  # its two neighbours


def test_low_precision_leaves_representable_products_exact():
    start = torch.zeros(64, dtype=torch.bfloat16, requires_grad=True)
    artbp.link(start, 1.5).backward(torch.full((64,), 2.0, dtype=torch.bfloat16))
    assert torch.equal(start.grad, torch.full((64,), 3.0, dtype=torch.bfloat16))


def test_low_precision_keeps_the_global_generator():
    before = torch.get_rng_state()
    start = torch.zeros(64, dtype=torch.bfloat16, requires_grad=True)
    artbp.link(start, 1.0015).float().sum().backward()
    assert torch.equal(torch.get_rng_state(), before)


def test_float32_products_are_formed_from_the_float64_factor():
    state = torch.ones(3, dtype=torch.float32, requires_grad=True)
    factor = torch.tensor([1 + 1e-9, 1 / 3, 3.0], dtype=torch.float64)
    artbp.link(state, factor).backward(torch.full((3,), 7.0))
    torch.testing.assert_close(state.grad.double(), 7 * factor, rtol=1.2e-7, atol=0)
