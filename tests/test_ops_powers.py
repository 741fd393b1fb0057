"""Links split into exact powers of two and scales beside them, for adjoints in low precision."""

from __future__ import annotations

import pytest
import torch

from artbp.ops._powers import powers


def draw(*shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    links = torch.rand(shape, generator=generator, dtype=torch.float64) * 3 + 1e-3
    return links.masked_fill(torch.rand(shape, generator=generator) < 0.2, 0.0)


@pytest.mark.parametrize("shape", [(1,), (40,), (40, 3)], ids=str)
def test_the_parts_are_those_of_the_links(shape):
    links = draw(*shape)
    links[-1] = 1.7
    p, s = powers(links)
    s = torch.ones_like(links) if s is None else s
    assert torch.equal(s[-1], torch.ones_like(s[-1]))
    assert ((s >= 1) & (s <= 2)).all()
    assert torch.equal(p == 0, links == 0)
    mantissas, _ = torch.frexp(p[1:])
    assert ((mantissas == 0.5) | (p[1:] == 0)).all()
    torch.testing.assert_close(p[0], links[0] * s[0], rtol=1e-15, atol=0)
    torch.testing.assert_close((p[1:] * s[:-1]), links[1:] * s[1:].where(links[1:] > 0, 0), rtol=1e-13, atol=0)


def test_a_product_beyond_all_range_is_no_matter():
    p, s = powers(torch.full((3000,), 2.7, dtype=torch.float64))
    assert s is not None
    assert ((s >= 1) & (s <= 2)).all()
    assert ((p >= 1) & (p <= 8)).all()


def test_the_adjoints_are_the_same():
    """δ_t = g_t + λ_{t+1} δ_{t+1}, and what the scaled recursion makes of it."""
    links, incoming = draw(50), torch.rand(50, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    p, s = powers(links)
    plain = scaled = torch.zeros((), dtype=torch.float64)
    for t in range(49, -1, -1):
        after = min(t + 1, 49)
        plain = incoming[t] + links[after] * plain
        scaled = incoming[t] / s[t] + p[after] * scaled
        torch.testing.assert_close(scaled * s[t], plain, rtol=1e-12, atol=0)


@pytest.mark.parametrize("links", [[1.0, 1.0, 1.0], [1.0, 0.0, 1.0, 0.0, 1.0], [0.3, 1.0]])
def test_without_a_product_there_is_nothing_to_scale(links):
    links = torch.tensor(links, dtype=torch.float64)
    p, s = powers(links)
    assert s is None
    assert torch.equal(p, links)
