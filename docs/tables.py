"""The numbers of the pages that come from `results/`: tables are written here, sentences are compared.

    python docs/tables.py        writes every table into its page, anew from the results

On a page (or the README) a table stands between two comments, which no reader sees:

    <!-- numbers: layers-h200 -->
    | … |
    <!-- end -->

and a function of that name here, marked `@table`, makes it out of result files. A sentence with numbers stays where
it is; a function marked `@sentences` gives the words that must be found on its page. `tests/test_numbers.py` compares
both, so that a page cannot say what the results do not.
"""

from __future__ import annotations

import json
import math
import re
import statistics
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "results"
REGION = re.compile(r"(<!-- numbers: (?P<name>[\w-]+) -->\n+)(?P<body>.*?)(\n+<!-- end -->)", re.DOTALL)

TABLES: dict[str, Callable[[], str]] = {}
SENTENCES: list[tuple[str, Callable[[], Iterator[str]]]] = []


def table(function: Callable[[], str]) -> Callable[[], str]:
    TABLES[function.__name__.replace("_", "-")] = function
    return function


def sentences(page: str) -> Callable[[Callable[[], Iterator[str]]], Callable[[], Iterator[str]]]:
    def register(function: Callable[[], Iterator[str]]) -> Callable[[], Iterator[str]]:
        SENTENCES.append((page, function))
        return function

    return register


def pages() -> list[Path]:
    return [ROOT / "README.md", *sorted(path for path in (ROOT / "docs").rglob("*.md") if "_build" not in path.parts)]


def written(text: str) -> str:
    """A page's text with its tables as the results have them."""
    return REGION.sub(lambda region: region[1] + TABLES[region["name"]]() + region[4], text)


def load(name: str) -> Any:
    return json.loads((RESULTS / name).read_text(encoding="utf-8"))


# How numbers are written


def markdown(head: Iterable[str], rows: Iterable[Iterable[str]], left: int = 1) -> str:
    """A table; the first `left` columns hold words, the others numbers."""
    head = list(head)
    rule = ["---"] * left + ["--:"] * (len(head) - left)
    lines = ["| " + " | ".join(cells) + " |" for cells in [head, *rows]]
    return "\n".join([lines[0], f"|{'|'.join(rule)}|", *lines[1:]])


def short(value: float, digits: int = 3) -> str:
    """A number in so many digits, as one writes it by hand: 0.0446, 14.3, 179,000, 3.3·10¹⁶."""
    if value == 0:
        return "0"
    exponent = math.floor(math.log10(abs(float(f"{value:.{digits - 1}e}"))))
    if exponent >= 7:
        mantissa = f"{value / 10**exponent:.{digits - 1}f}"
        return f"{mantissa}·10{''.join('⁰¹²³⁴⁵⁶⁷⁸⁹'[int(digit)] for digit in str(exponent))}"
    rounded = round(value, digits - 1 - exponent)
    text = f"{rounded:,.{max(0, digits - 1 - exponent)}f}"
    return text.replace("-", "−")


def span(values: list[float], digits: int = 2) -> str:
    """The least and the greatest of some numbers; with a digit more where they are close."""
    low, high = min(values, key=abs), max(values, key=abs)
    digits += abs(high - low) < 0.05 * abs(low)
    return f"{short(low, digits)} to {short(high, digits)}"


def geometric_mean(ratios: Iterable[float]) -> float:
    return math.exp(statistics.fmean(math.log(ratio) for ratio in ratios))


# Influence balancing

INFLUENCE = ("", "long/", "noise/", "noise-long/")  # the folders of its results


def _runs(folder: str) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for run in load(f"influence-balancing/{folder}summary.json")["runs"]:
        found.setdefault(run["method"], []).append(run)
    return found


def _loss(runs: list[dict[str, Any]], digits: int = 3) -> str:
    losses = [run["average_loss"] for run in runs]
    if len(losses) > 1:
        return span(losses, min(digits, 2))
    return short(losses[0], 2 if losses[0] >= 1000 else digits)


def _theta(runs: list[dict[str, Any]]) -> str:
    """To the third decimal while it is on its way, to the fourth where it has arrived."""
    thetas = sorted((run["theta"] for run in runs), key=abs)
    texts = []
    for theta in dict.fromkeys([thetas[0], thetas[-1]]):
        arrived = abs(theta + 1 / 6) < 0.01
        texts.append(f"{theta:.4f}".replace("-", "−") if arrived else short(theta, 2 if abs(theta) >= 1e7 else 3))
    return " to ".join(dict.fromkeys(texts))


@table
def influence_losses() -> str:
    runs, long = _runs(""), _runs("long/")
    head = ["method", "100,000 steps", "θ", "1,000,000 steps", "θ"]
    rows = [
        [f"`{method}`", _loss(found), _theta(found), _loss(long[method]), _theta(long[method])]
        for method, found in runs.items()
    ]
    return markdown(head, rows)


@table
def influence_expected() -> str:
    """What the truncated gradient is, at rest, as a multiple of the exact one: computed, not run."""
    from artbp import Fixed
    from artbp.experiments.influence_theory import expected_gradient

    lengths = (10, 50, 100, 109, 110, 200, 400, 1000)
    values = [f"{expected_gradient(10, 13, Fixed(length)):+.3f}".replace("-", "−") for length in lengths]
    return markdown(["$L$", *map(str, lengths), "ARTBP"], [[r"$\mathbb{E}[\tilde g]/g$", *values, "1"]])


@table
def influence_noise() -> str:
    folders = ("", "noise/", "long/", "noise-long/")
    head = ["method", "100,000 steps", "with noise", "1,000,000 steps", "with noise"]
    columns = [_runs(folder) for folder in folders]
    methods = ("TruncatedBPTT(200)", "ARTBP(PowerLaw(mean=16, alpha=6))")
    return markdown(head, [[f"`{method}`", *(_loss(column[method]) for column in columns)] for method in methods])


@sentences("experiments")
def _influence_in_words() -> Iterator[str]:
    shortest = load("influence-balancing/summary.json")["shortest_length_with_the_right_sign"]
    yield f"Below $L = {shortest}$ the sign is wrong"

    def factors(folder: str) -> tuple[float, float]:
        truncated, ours = (
            [run["average_loss"] for run in _runs(folder)[method]]
            for method in ("TruncatedBPTT(200)", "ARTBP(PowerLaw(mean=16, alpha=6))")
        )
        return min(truncated) / max(ours), max(truncated) / min(ours)

    (low, high), (noisy_low, noisy_high), (long_low, long_high) = map(factors, ("", "noise/", "noise-long/"))
    yield f"A factor of {low:.0f} to {high:.0f} without noise is one of {noisy_low:.1f} to {noisy_high:.1f} with it"
    yield f"and of {long_low:.2f} to {long_high:.2f} after a million steps"


@sentences("experiments")
def _influence_costs() -> Iterator[str]:
    times = load("influence-balancing/benchmark.json")["microseconds_per_step"]
    truncated = [one["experiment"] for name, one in times.items() if name.startswith("Truncated")]
    ours = times["ARTBP(PowerLaw(mean=16, alpha=6))"]["experiment"]
    ratios = [one["ratio"] for name, one in times.items() if name != "default"]
    yield f"costs {min(truncated):.0f} to {max(truncated):.0f} µs under truncated BPTT and {ours:.0f} µs under ARTBP"
    yield f"costs {min(ratios):.1f} to {max(ratios):.1f} times as much"
    *first, last = (short(_seconds(folder), 2) for folder in INFLUENCE)
    yield f"took {', '.join(first)} and {last} seconds"


def _seconds(folder: str) -> float:
    return math.fsum(run["seconds"] for run in load(f"influence-balancing/{folder}summary.json")["runs"])


@table
def sources() -> str:
    """Everything under `results/` that a page shows, and its command."""
    rows = []
    for folder in INFLUENCE:
        config = load(f"influence-balancing/{folder}config.json")
        flags = f" --steps {config['steps']}" * (config["steps"] != 100_000) + " --noise 1" * bool(config["noise"])
        rows.append([f"`results/influence-balancing/{folder}`", f"`artbp influence-balancing{flags}`"])
    compared = [f"compare/{place}/config" for place in ("influence-balancing", "rnn", "rnn-at-equal-memory")]
    for file in (*compared, "lengths/config", "language-bias/language-bias", "memory/memory"):
        command = load(f"{file}.json")["command"].partition(" --out")[0]
        rows.append([f"`results/{file.rpartition('/')[0]}/`", f"`{command}`"])
    return markdown(["data", "command"], rows, left=2)


# Estimators side by side


@table
def equal_memory() -> str:
    rows = [
        [
            f"`{row['estimator']}`",
            f"{row['bytes'] / 1024:.0f}",
            f"{row['draw_cosine']:.3f}",
            f"{short(100 * row['error'])}%",
        ]
        for row in load("compare/rnn-at-equal-memory/comparison.json")["rows"]
    ]
    return markdown(["estimator", "KiB", "cosine of one draw", "error of one draw"], rows)


@sentences("choosing-an-estimator")
def _short_segments() -> Iterator[str]:
    rows = {row["estimator"]: row for row in load("compare/rnn/comparison.json")["rows"]}
    noise = [row["deviation"] for name, row in rows.items() if name.startswith("ARTBP")]
    times = rows["UORO()"]["microseconds"] / rows["BPTT()"]["microseconds"]
    yield f"({math.floor(times)} times BPTT's step for 32 units on a CPU)"
    yield (
        f"truncated BPTT is {rows['TruncatedBPTT(5)']['bias']:.0%} off at L = 5 and "
        f"{rows['TruncatedBPTT(20)']['bias']:.0%} at 20; ARTBP with a mean of 16 has {min(noise):.0%} to "
        f"{max(noise):.0%} of noise"
    )


# The gradient of a language model


@table
def language_bias() -> str:
    found = load("language-bias/language-bias.json")
    rows = [
        [
            f"`{row['estimator'].replace(', window=100', '')}`".replace(
                ", a cut for each lane`", "`, each lane by itself"
            ),
            f"{row['bias']:.1%}" if row["estimator"].startswith("Truncated") else "0",
            f"{row['deviation']:.1%}" if row["deviation"] else "0",
            f"{row['draw_cosine']:.4f}",
        ]
        for row in found["rows"]
    ]
    return markdown(["estimator", "bias", "noise of one draw", "cosine of one draw"], rows)


@sentences("faq")
def _language_in_words() -> Iterator[str]:
    found = load("language-bias/language-bias.json")
    yield f"over {found['steps']:,} steps and {found['model']['lanes']} lanes"
    yield f"({found['bits']:.2f} bits)"
    yield f"differs by {found['data_deviation']:.0%} from one such stretch of text to another"


def _difference(arm: dict[str, Any], split: str) -> tuple[str, str]:
    for found in arm["differences"]:
        if found["split"] == split:
            interval = "one pair" if found["interval"] is None else "{:+.4f} to {:+.4f}".format(*found["interval"])
            return f"{found['mean']:+.4f}", interval
    return "–", "–"


@table
def penn_treebank_small() -> str:
    """The three arms at their best rate, bits per character over the seeds."""
    columns = [["seeds", "train", "validation", "test", "test, minus the first", "its 95% interval"]]
    for arm in (arms := load("penn-treebank-small/comparison.json")):
        numbers = [arm["numbers"][split] for split in ("train", "valid", "test")]
        spread = [
            f"{number['mean']:.4f}" + (f" ± {number['deviation']:.4f}" if number["deviation"] is not None else "")
            for number in numbers
        ]
        columns.append([str(len(arm["seeds"])), *spread, *_difference(arm, "test")])
    return markdown(["", *(arm["label"] for arm in arms)], zip(*columns, strict=True))


@table
def penn_treebank_small_rates() -> str:
    """The bits per character of seed 0 on the validation text, at every rate."""
    found: dict[str, dict[float, float]] = {}
    for path in sorted((RESULTS / "penn-treebank-small" / "arms").glob("*-seed-0/summary.json")):
        config = json.loads((path.parent / "config.json").read_text(encoding="utf-8"))
        bits = json.loads(path.read_text(encoding="utf-8"))["valid_bpc"]
        found.setdefault(config["method"], {})[config["lr"]] = bits
    rates = sorted({rate for of_arm in found.values() for rate in of_arm})
    names = {"tbptt": "truncated BPTT (50)", "random": "random cuts (50, α=4)", "artbp": "ARTBP (50, α=4)"}
    rows = [
        [names[arm], *(f"{found[arm][rate]:.4f}" if rate in found[arm] else "–" for rate in rates)] for arm in names
    ]
    return markdown(["rate", *(f"{rate:g}" for rate in rates)], rows)


@table
def train_cpu() -> str:
    """`artbp train` beside the loop by hand, at equal mean length."""
    names = {
        "by hand": "truncated BPTT by hand, `torch.nn.LSTM`",
        "by hand, random lengths": "by hand, the lengths of `artbp`",
        "by hand, memory not kept": "by hand, in a process of its own",
    }
    rows = [
        [
            names.get(row["variant"], f"`{row['variant']}`"),
            f"{short(row['characters_per_second'], 2)}",
            f"{row['ratio_of_medians']:.2f} ({row['ratio_of_means']:.2f})",
            short(row["peak_bytes"] / 2**20, 2) if row["peak_bytes"] is not None else "–",
        ]
        for row in load("train-cpu/train.json")["rows"]
    ]
    return markdown(["", "characters a second", "ratio", "peak of 200 updates, MiB"], rows)


# Layers


def _h200(part: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = load("layers-h200/layers.json")[part]
    return rows


def _ratio(row: dict[str, Any], name: str = "auto") -> float:
    milliseconds = row["floor_ms"] if name == "floor" else row["ms"][name]
    return float(milliseconds / row["ms"]["torch.nn"])


def _size(numbers: Iterable[Any]) -> str:
    """Sizes, in one line however narrow the page is."""
    return ",\u00a0".join(map(str, numbers))


KINDS = {"fp32": "float32", "tf32": "TF32", "bf16": "bfloat16"}


@table
def layers_h200() -> str:
    sizes = dict.fromkeys(tuple(row["size"]) for row in _h200("fixed"))
    columns = [(layers, kind) for layers in (1, 2) for kind in KINDS]
    found = {(tuple(row["size"]), row["layers"], row["kind"]): _ratio(row) for row in _h200("fixed")}
    head = ["T, B, I, H", *KINDS.values(), *(f"2 layers, {name}" for name in KINDS.values())]
    rows = [[_size(size), *(f"{found[size, *column]:.2f}" for column in columns)] for size in sizes]
    means = [geometric_mean(found[size, *column] for size in sizes) for column in columns]
    return markdown(head, [*rows, ["*geometric mean*", *(f"*{mean:.2f}*" for mean in means)]])


@table
def layers_h200_floor() -> str:
    rows = {(tuple(row["size"]), row["kind"]): row for row in _h200("fixed") if row["layers"] == 1}
    sizes = dict.fromkeys(size for size, _ in rows)
    names = ("auto", "floor", "loop")
    head = ["T, B, I, H", *(f"{KINDS[kind]}, {name}" for kind in ("fp32", "tf32") for name in ("ours", *names[1:]))]
    return markdown(
        head,
        [
            [
                _size(size),
                *(short(_ratio(rows[size, kind], name), 2) for kind in ("fp32", "tf32") for name in names),
            ]
            for size in sizes
        ],
    )


@table
def layers_h200_sampled() -> str:
    found: dict[tuple[Any, ...], dict[str, float]] = {}
    for row in _h200("random"):
        found.setdefault((tuple(row["size"]), row["lanes"]), {})[row["kind"]] = row["ratio"]
    head = ["L0, B, I, H", "links", *KINDS.values()]
    rows = [
        [_size(size), "per lane" if lanes else "shared", *(f"{ratios[kind]:.2f}" for kind in KINDS)]
        for (size, lanes), ratios in found.items()
    ]
    means = [f"*{geometric_mean(ratios[kind] for ratios in found.values()):.2f}*" for kind in KINDS]
    return markdown(head, [*rows, ["*geometric mean*", "", *means]], left=2)


@sentences("speed")
def _h200_in_words() -> Iterator[str]:
    single = [row for row in _h200("fixed") if row["layers"] == 1]
    memory = [row["MiB"]["auto"] / row["MiB"]["torch.nn"] for row in _h200("fixed")]
    yield f"The peak memory of one forward and backward is {min(memory):.2f} to {max(memory):.2f} of torch.nn's"
    loops = [_ratio(row, "loop") for row in single]
    yield f"{min(loops):.1f} to {max(loops):.0f} times torch.nn's time"
    worst = max((row for row in _h200("random")), key=lambda row: row["ratio"])
    yield f"The worst of these rows, {worst['ratio']:.2f}"
    environment = load("layers-h200/layers.json")["environment"]
    yield f"torch {environment['torch'].partition('+')[0]}, CUDA {environment['cuda']}, Triton {environment['triton']}"


def _cpu() -> dict[tuple[str, str, str], dict[str, Any]]:
    """The rows of `artbp.nn`."""
    rows = [
        row for folder in ("lstm", "lstm-1000", "gru-rnn") for row in load(f"layers-cpu/{folder}/layers.json")["rows"]
    ]
    ours = [row for row in rows if row["variant"] == "artbp.nn"]
    return {(row["kind"], row["size"], row["links"]): row for row in ours}


@table
def layers_cpu() -> str:
    found = _cpu()

    def cell(kind: str, size: str, links: str) -> str:
        row = found.get((kind, size, links))
        return "–" if row is None else f"{row['ratio']:.2f} ({row['median_ratio']:.2f})"

    def torch_nn(kind: str, size: str) -> str:
        row = found[kind, size, "shared"]
        return short(row["step"] / row["ratio"], 2)

    sizes = dict.fromkeys((kind, size) for kind, size, _ in found)
    order = sorted(
        sizes, key=lambda key: (["LSTM", "GRU", "RNN"].index(key[0]), math.prod(map(int, key[1].split("x")[1:])))
    )
    rows = [
        [
            f"{kind}, {_size(size.split('x'))}",
            torch_nn(kind, size),
            cell(kind, size, "shared"),
            cell(kind, size, "lanes"),
        ]
        for kind, size in order
    ]
    return markdown(["layer; T, B, I, H", "torch.nn, µs a step", "links shared", "links per lane"], rows)


@table
def loop_cpu() -> str:
    found = load("influence-balancing/benchmark.json")["microseconds_per_step"]
    rows = [[f"`{method}`", *(f"{one[name]:.0f}" for name in ("experiment", "plain"))] for method, one in found.items()]
    return markdown(
        ["method", "µs a step", "the loss added up step by step"], [row for row in rows if row[0] != "`default`"]
    )


# Memory


@table
def memory() -> str:
    found = load("memory/memory.json")["rows"]
    windows = list(dict.fromkeys(row["window"] for row in found))
    lengths = dict.fromkeys((row["segment"], row["length"]) for row in found)
    cells = {(row["length"], row["window"]): row for row in found}
    head = ["segment", "steps", *("whole" if window is None else f"window {window}" for window in windows)]
    rows = [
        [name, f"{length:,}", *(short(cells[length, window]["bytes"] / 2**20, 3) for window in windows)]
        for name, length in lengths
    ]
    return markdown(head, rows)


# The README


@table
def measured() -> str:
    """The whole in a few lines, each with the page that has the rest."""
    runs = _runs("")
    truncated = {length: _loss(runs[f"TruncatedBPTT({length})"]) for length in (10, 100, 200)}
    ours = _loss(runs["ARTBP(PowerLaw(mean=16, alpha=6))"])
    language = load("language-bias/language-bias.json")
    estimates = {row["estimator"]: row for row in language["rows"]}
    bias = estimates["TruncatedBPTT(50, window=100)"]["bias"]
    noise = estimates["ARTBP(PowerLaw(mean=50, alpha=4), window=100)"]["deviation"]
    single = [row for row in _h200("fixed") if row["layers"] == 1]
    gpu = {kind: geometric_mean(_ratio(row) for row in single if row["kind"] == kind) for kind in KINDS}
    cpu = [row["ratio"] for (kind, _, links), row in _cpu().items() if kind == "LSTM" and links == "shared"]
    held = {row["window"]: row for row in load("memory/memory.json")["rows"] if row["segment"] == "longest of 1,570"}
    whole, windows = (held[window]["bytes"] / 2**20 for window in (None, 64))
    pages = "docs/{}.md".format
    rows = [
        [
            "Influence balancing, average loss over 100,000 steps",
            f"truncated BPTT over 10, 100, 200 steps: {truncated[10]}, {truncated[100]}, {truncated[200]}; "
            f"ARTBP, 16 on average, five seeds: {ours}",
            f"[Experiments]({pages('experiments')})",
        ],
        [
            f"Gradient of a character model, Penn Treebank, {language['steps']:,} steps",
            f"truncated BPTT(50): {bias:.1%} bias; ARTBP, mean 50: {noise:.1%} noise, no bias; "
            f"from text to text it differs by {language['data_deviation']:.0%}",
            f"[Questions]({pages('faq')})",
        ],
        [
            "LSTM with links on an H200, time over torch.nn's (cuDNN)",
            ", ".join(f"{KINDS[kind]} {ratio:.2f}" for kind, ratio in gpu.items())
            + " (geometric means over eight sizes)",
            f"[Speed]({pages('speed')})",
        ],
        [
            "LSTM with links on one CPU core, time over torch.nn's",
            f"{min(cpu):.2f} to {max(cpu):.2f} over four sizes, random lengths, links shared",
            f"[Speed]({pages('speed')})",
        ],
        [
            "Memory of the longest of 1,570 segments of mean 50",
            f"whole {short(whole)} MiB, `window=64` {short(windows)} MiB",
            f"[Memory]({pages('memory')})",
        ],
    ]
    return markdown(["", "measured", "more"], rows, left=3)


def main() -> None:
    changed = []
    for page in pages():
        text = page.read_text(encoding="utf-8")
        if (anew := written(text)) != text:
            page.write_text(anew, encoding="utf-8")
            changed.append(page.relative_to(ROOT).as_posix())
    print(f"rewritten: {', '.join(changed)}" if changed else "all tables are as the results have them")


if __name__ == "__main__":
    sys.exit(main())
