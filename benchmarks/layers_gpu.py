"""The GPU rows of the layer benchmark: our paths beside cuDNN's layers in torch.nn, forward and backward.

    python benchmarks/layers_gpu.py --output results/layers-h200/layers.json
    python benchmarks/layers_gpu.py --modes GRU RNN_TANH --output gru-rnn.json

Variants are interleaved and the median reported; the random lengths are the same list for all; every variant is
checked against the specification in float64 before it is timed, and a red gate leaves its row without a number. `floor`
is the time of the same matrix products alone, in captured graphs: cuBLAS for every step, then the large ones.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import statistics
import subprocess
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from artbp.ops import batched, cudnn, fused, naive
from artbp.ops._types import GATES, MODES

SIZES = [
    (50, 64, 128, 256), (50, 64, 64, 1000), (200, 16, 64, 128), (50, 1, 32, 64),
    (50, 64, 512, 512), (50, 64, 1024, 1024), (50, 64, 128, 2048), (512, 16, 512, 512),
]  # fmt: skip
TOLERANCE = {"fp32": 2e-6, "tf32": 1e-3, "bf16": 1e-2}
PATHS = {
    "auto": fused.recurrence, "scan": fused.scan, "graphs": fused.graphs, "cudnn": cudnn.recurrence,
    "batched": batched.recurrence, "loop": naive.recurrence,
}  # fmt: skip


def lengths_and_links(mean: int, alpha: float, count: int, seed: int) -> tuple[list[int], list[Tensor]]:
    """Segment lengths of the paper's law (a beta-geometric) and the links inside each."""
    generator = np.random.default_rng(seed)
    p = generator.beta(alpha - 1, (alpha - 2) * (mean - 1), count)
    lengths = [int(n) for n in generator.geometric(p)]
    links = []
    for n in lengths:
        hazard = (alpha - 1) / ((alpha - 2) * mean + np.arange(1, n) + 0.0)
        links.append(torch.from_numpy(np.concatenate([[0.0], 1 / (1 - hazard)])))
    return lengths, links


def set_kind(kind: str) -> torch.dtype:
    torch.backends.cudnn.allow_tf32 = kind == "tf32"
    torch.backends.cuda.matmul.allow_tf32 = kind == "tf32"
    return torch.bfloat16 if kind == "bf16" else torch.float32


class Case:
    """One size and precision: the stock layer, our paths over the same parameters, and inputs long enough for all."""

    def __init__(self, mode: str, size: tuple[int, int, int, int], kind: str, layers: int, longest: int) -> None:
        self.mode, (self.T, self.B, I, H) = mode, size
        dtype = set_kind(kind)
        torch.manual_seed(0)
        layer, _, nonlinearity = mode.lower().partition("_")
        options = {"nonlinearity": nonlinearity} if nonlinearity else {}
        self.stock = getattr(torch.nn, layer.upper())(I, H, layers, device="cuda", dtype=dtype, **options)
        if mode == "RNN_RELU":  # away from the kink, across which rounding may push: there the derivative is another
            with torch.no_grad():
                for name, parameter in self.stock.named_parameters():
                    parameter.copy_(parameter.sign() * 4 if "bias_ih" in name else parameter / 8)
        self.stock.flatten_parameters()
        self.layers = [
            tuple(getattr(self.stock, f"{name}_l{k}") for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"))
            for k in range(layers)
        ]
        self.zeros = (torch.zeros(self.B, H, device="cuda", dtype=dtype),) * (2 if mode == "LSTM" else 1)
        self.x = torch.randn(longest, self.B, I, device="cuda", dtype=dtype)
        self.dy = torch.randn(longest, self.B, H, device="cuda", dtype=dtype)

    def ours(self, name: str) -> Callable[[int, Tensor | None], None]:
        def call(T: int, links: Tensor | None) -> None:
            y = self.x[:T].requires_grad_()
            for weights in self.layers:
                y, _ = PATHS[name](self.mode, y, self.zeros, weights, links)
            y.backward(self.dy[:T])
            self.stock.zero_grad(set_to_none=True)

        return call

    def theirs(self, T: int, links: Tensor | None) -> None:
        y, _ = self.stock(self.x[:T].requires_grad_())
        y.backward(self.dy[:T])
        self.stock.zero_grad(set_to_none=True)

    def gate(self, name: str, kind: str) -> float:
        """The worst relative error of y and all gradients over 20 steps with cuts; torch.nn's without."""
        T = min(20, self.T)
        links = torch.ones(T, dtype=torch.float64)
        if name != "torch.nn":
            links[:: max(T // 3, 1)] = 0.0
            links[1:3] = 1.3
        function = naive.recurrence if name == "torch.nn" else PATHS[name]

        def gradients(call: Callable[..., Any], exact: bool) -> list[Tensor]:
            leaves = [t.detach().double() if exact else t.detach() for t in (self.x[:T], *self.layers[0])]
            for leaf in leaves:
                leaf.requires_grad_()
            zeros = tuple(zero.double() if exact else zero for zero in self.zeros)
            y, _ = call(self.mode, leaves[0], zeros, tuple(leaves[1:]), links)
            return [y, *torch.autograd.grad(y, leaves, self.dy[:T].to(y.dtype))]

        def stock(mode: str, x: Tensor, hx: Any, weights: Any, links: Any) -> Any:
            operator = getattr(torch, mode.lower())
            first = tuple(state[None] for state in hx)
            y, *last = operator(x, first if mode == "LSTM" else first[0], weights, True, 1, 0.0, True, False, False)
            return y, last

        found = gradients(stock if name == "torch.nn" else function, exact=False)
        exact = gradients(naive.recurrence, exact=True)
        return max(float((a.double() - b).norm() / b.norm()) for a, b in zip(found, exact, strict=True))


def milliseconds(calls: dict[str, Callable[[], None]], repeats: int, together: int = 4) -> dict[str, float]:
    """Median time of each, interleaved, after two rounds of warming up.

    A sample is some calls in a row, as training issues them: the host may run ahead of the GPU, for all variants alike.
    """
    times: dict[str, list[float]] = {name: [] for name in calls}
    names = list(calls)
    for turn in range(repeats + 2):
        first = turn % len(names)  # whoever comes after a slow one finds colder caches: each takes its turn
        for name in names[first:] + names[:first]:
            call = calls[name]
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda.synchronize()
            start.record()
            for _ in range(together):
                call()
            end.record()
            end.synchronize()
            if turn >= 2:
                times[name].append(start.elapsed_time(end) / together)
    return {name: statistics.median(values) for name, values in times.items()}


def on_device(call: Callable[[], None]) -> float:
    """Time on the GPU alone, in ms: the host issues the call while the GPU is kept waiting."""
    times = []
    for _ in range(4):
        torch.cuda.synchronize()
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(120_000_000)
        start.record()
        call()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    return statistics.median(times[1:])


def memory(call: Callable[[], None]) -> float:
    """Peak of one forward and backward above what was there before, in MiB."""
    call()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    call()
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - before) / 2**20


def floor(case: Case, kind: str) -> float:
    """The matrix products of forward and backward alone, in ms."""
    total = 0.0
    dtype = case.x.dtype
    for w_ih, w_hh, *_ in case.layers:
        H, I, TB = w_hh.shape[1], w_ih.shape[1], case.T * case.B
        w_ih, w_hh = w_ih.detach(), w_hh.detach()
        x = torch.randn(TB, I, device="cuda", dtype=dtype)
        h = torch.randn(TB, H, device="cuda", dtype=dtype)
        d = torch.randn(TB, GATES[case.mode] * H, device="cuda", dtype=dtype)
        one_h, one_d = h[: case.B], d[: case.B]

        def large(w_ih: Tensor = w_ih, x: Tensor = x, h: Tensor = h, d: Tensor = d) -> None:
            for a, b in ((x, w_ih.t()), (d, w_ih), (d.t(), x), (d.t(), h)):
                torch.mm(a, b)

        steps = min(case.T, 32)
        torch.mm(one_h, w_hh.t())
        torch.mm(one_d, w_hh)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(steps):
                torch.mm(one_h, w_hh.t())
                torch.mm(one_d, w_hh)
        big = torch.cuda.CUDAGraph()
        large()
        with torch.cuda.graph(big):
            large()
        found = milliseconds({"steps": graph.replay, "large": big.replay}, 9)
        total += found["steps"] * case.T / steps + found["large"]
    return total


def environment() -> dict[str, Any]:
    smi = subprocess.run(
        ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"],
        capture_output=True, text=True, check=False,
    ).stdout.strip()  # fmt: skip
    import triton

    return {
        "gpu": torch.cuda.get_device_name(), "nvidia-smi": smi, "torch": torch.__version__,
        "triton": triton.__version__, "cudnn": torch.backends.cudnn.version(), "cuda": torch.version.cuda,
        "python": platform.python_version(),
    }  # fmt: skip


def fixed_row(
    mode: str, size: tuple[int, int, int, int], kind: str, layers: int, names: list[str], repeats: int
) -> dict[str, Any]:
    """One line of the table: all variants at T = L0."""
    case = Case(mode, size, kind, layers, size[0])
    T = size[0]
    links = torch.full((T,), 1.01, dtype=torch.float64)
    links[0] = 0.0
    row: dict[str, Any] = {"mode": mode, "size": size, "kind": kind, "layers": layers, "error": {}, "ms": {}, "MiB": {}}
    row["error"]["torch.nn"] = case.gate("torch.nn", kind)
    calls: dict[str, Callable[[], None]] = {"torch.nn": partial(case.theirs, T, None)}
    for name in names:
        try:
            row["error"][name] = case.gate(name, kind)
        except (ValueError, RuntimeError) as problem:
            row["error"][name] = str(problem).splitlines()[0][:160]
            continue
        if row["error"][name] <= max(TOLERANCE[kind], 1.5 * row["error"]["torch.nn"]):
            calls[name] = partial(case.ours(name), T, links)
    row["ms"] = milliseconds(calls, repeats)
    row["device_ms"] = {name: on_device(calls[name]) for name in ("torch.nn", "auto") if name in calls}
    if layers == 1:
        row["ms"]["loop"] = milliseconds({"loop": partial(case.ours("loop"), T, links)}, 3, together=1)["loop"]
    row["MiB"] = {name: memory(call) for name, call in calls.items()}
    row["floor_ms"] = floor(case, kind)
    row["form"] = fused._form(mode, fused._kind(case.x), size[1], size[3], case.x.device)
    return row


def described(row: dict[str, Any]) -> str:
    """A row as a line: every variant's time and peak memory as a ratio to torch.nn's."""
    ms, memory, error = row["ms"], row["MiB"], row["error"]
    base = ms["torch.nn"]
    parts = [
        f"{row['mode']} {row['layers']} {row['kind']} {row['size']!s:22}",
        f"torch.nn {base:7.3f} ms {memory['torch.nn']:6.1f} MiB",
        f"floor {row['floor_ms'] / base:.2f} [{row['form']}]",
        "device " + "/".join(f"{value:.2f}" for value in row["device_ms"].values()),
    ]
    for name in ms:
        if name != "torch.nn":
            share = f" ({memory[name] / memory['torch.nn']:.2f} mem)" if name in memory else ""
            parts.append(f"{name} {ms[name] / base:.2f}{share}")
    parts += [f"{name} RED: {error[name]}" for name in error if name not in ms]
    return "  ".join(parts)


def random_row(
    mode: str, size: tuple[int, int, int, int], kind: str, mean: int, count: int, lanes: bool
) -> dict[str, Any]:
    """The same list of sampled lengths for torch.nn and for us: total time of all segments."""
    lengths, links = lengths_and_links(mean, 4.0, count, 1)
    if lanes:
        links = [each[:, None].expand(-1, size[1]).contiguous() for each in links]
    case = Case(mode, (mean, *size[1:]), kind, 1, max(lengths))
    calls: dict[str, Callable[[int, Tensor | None], None]] = {"torch.nn": case.theirs, "auto": case.ours("auto")}
    for call in calls.values():
        for n in sorted(set(lengths))[:: max(1, len(set(lengths)) // 12)]:
            call(n, links[lengths.index(n)])
    total = dict.fromkeys(calls, 0.0)
    for k in range(0, count, 20):  # blocks of twenty segments, in turn
        for name, call in calls.items():
            torch.cuda.synchronize()
            begin = time.perf_counter()
            for n, each in zip(lengths[k : k + 20], links[k : k + 20], strict=True):
                call(n, each)
            torch.cuda.synchronize()
            total[name] += (time.perf_counter() - begin) * 1e3
    return {
        "mode": mode, "size": (mean, *size[1:]), "kind": kind, "layers": 1, "lengths": count, "lanes": lanes,
        "steps": sum(lengths), "ms": total, "ratio": total["auto"] / total["torch.nn"],
    }  # fmt: skip


def mean_ratio(ratios: list[float]) -> float:
    return math.exp(statistics.fmean(math.log(r) for r in ratios)) if ratios else float("nan")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("layers-gpu.json"))
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--lengths", type=int, default=200)
    parser.add_argument("--modes", nargs="+", choices=MODES, default=["LSTM"])
    parser.add_argument(
        "--variants", help="default: auto,scan,graphs and cudnn, or batched where cudnn serves no links"
    )
    parser.add_argument("--quick", action="store_true", help="the fixed lengths only")
    arguments = parser.parse_args()
    result: dict[str, Any] = {"environment": environment(), "fixed": [], "random": []}
    for mode in arguments.modes:
        other = "cudnn" if mode == "LSTM" else "batched"
        names = (arguments.variants or f"auto,scan,graphs,{other}").split(",")
        for layers in (1, 2):
            for kind in ("bf16", "tf32", "fp32"):
                for size in SIZES:
                    row = fixed_row(mode, size, kind, layers, names if layers == 1 else ["auto"], arguments.repeats)
                    result["fixed"].append(row)
                    print(described(row), flush=True)
                    arguments.output.write_text(json.dumps(result, indent=1))
        if not arguments.quick:
            for kind in ("bf16", "tf32", "fp32"):
                for size, mean, lanes in sampled():
                    result["random"].append(random_row(mode, size, kind, mean, arguments.lengths, lanes))
                    print(result["random"][-1], flush=True)
                arguments.output.write_text(json.dumps(result, indent=1))
    for mode in arguments.modes:
        print(mode)
        summarise({part: [row for row in result[part] if row["mode"] == mode] for part in ("fixed", "random")})


def sampled() -> list[tuple[tuple[int, int, int, int], int, bool]]:
    """Size, mean length, and whether links are per lane, of the rows of sampled lengths."""
    small, large = SIZES[0], SIZES[1]
    rest = [(small, 20, False), (small, 200, False), (small, 50, True), (large, 20, True)]
    return [(size, size[0], False) for size in SIZES] + rest


def summarise(result: dict[str, Any]) -> None:
    """The means that the targets speak of."""

    def ratios(layers: int, kinds: tuple[str, ...]) -> list[float]:
        return [
            row["ms"]["auto"] / row["ms"]["torch.nn"]
            for row in result["fixed"]
            if row["layers"] == layers and row["kind"] in kinds and "auto" in row["ms"]
        ]

    for layers in (1, 2):
        for kinds in (("tf32", "bf16"), ("tf32",), ("bf16",), ("fp32",)):
            found = ratios(layers, kinds)
            device = [
                row["device_ms"]["auto"] / row["device_ms"]["torch.nn"]
                for row in result["fixed"]
                if row["layers"] == layers and row["kind"] in kinds and "auto" in row["device_ms"]
            ]
            print(
                f"{layers} layer(s), {'+'.join(kinds)}: mean {mean_ratio(found):.3f}, worst {max(found):.2f}, "
                f"{len(found)} sizes; on the device alone mean {mean_ratio(device):.3f}, worst {max(device):.2f}"
            )
    for kinds in (("tf32", "bf16"), ("fp32",)):
        found = [row["ratio"] for row in result["random"] if row["kind"] in kinds]
        if found:
            print(f"random lengths, {'+'.join(kinds)}: mean {mean_ratio(found):.3f}, worst {max(found):.2f}")


if __name__ == "__main__":
    main()
