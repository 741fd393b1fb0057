"""The table of a layer benchmark, as Markdown, from its JSON.

python benchmarks/layers_table.py results/layers-h200/layers.json > results/layers-h200/table.md
"""

from __future__ import annotations

import json
import math
import statistics
import sys
from pathlib import Path
from typing import Any


def mean(ratios: list[float]) -> float:
    return math.exp(statistics.fmean(math.log(ratio) for ratio in ratios))


def mode_of(row: dict[str, Any]) -> str:
    return str(row.get("mode", "LSTM"))


def cell(row: dict[str, Any], name: str) -> str:
    if name not in row["ms"]:
        return "–" if name not in row["error"] else "red"
    return f"{row['ms'][name] / row['ms']['torch.nn']:.2f}"


def fixed(rows: list[dict[str, Any]]) -> list[str]:
    names = ["auto", "scan", "graphs", "cudnn" if mode_of(rows[0]) == "LSTM" else "batched", "loop"]
    head = [
        "layers",
        "kind",
        "T, B, I, H",
        "torch.nn ms",
        *names,
        "floor",
        "device ms, torch.nn / auto",
        "memory",
        "error",
    ]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for row in rows:
        base, memory, device, error = row["ms"]["torch.nn"], row["MiB"], row["device_ms"], row["error"]
        cells = [
            str(row["layers"]), row["kind"], ", ".join(map(str, row["size"])), f"{base:.2f}",
            *[cell(row, name) for name in names], f"{row['floor_ms'] / base:.2f}",
            f"{device['torch.nn']:.2f} / {device['auto']:.2f}", f"{memory['auto'] / memory['torch.nn']:.2f}",
            f"{error['auto']:.1e} ({error['torch.nn']:.1e})",
        ]  # fmt: skip
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def means(rows: list[dict[str, Any]]) -> list[str]:
    lines = [
        "| layers | kinds | variant | mean ratio | worst | on the device alone, auto |",
        "|---|---|---|---|---|---|",
    ]
    for layers in (1, 2):
        for kinds in (("tf32", "bf16"), ("tf32",), ("bf16",), ("fp32",)):
            chosen = [row for row in rows if row["layers"] == layers and row["kind"] in kinds]
            device = [row["device_ms"]["auto"] / row["device_ms"]["torch.nn"] for row in chosen]
            best = [min(row["ms"][n] for n in ("scan", "graphs") if n in row["ms"]) for row in chosen if layers == 1]
            for variant, times in (("auto", [row["ms"]["auto"] for row in chosen]), ("better of scan, graphs", best)):
                if times:
                    ratios = [ms / row["ms"]["torch.nn"] for ms, row in zip(times, chosen, strict=True)]
                    aside = f"{mean(device):.3f}, worst {max(device):.2f}" if variant == "auto" else ""
                    name = " + ".join(kinds)
                    lines.append(
                        f"| {layers} | {name} | {variant} | {mean(ratios):.3f} | {max(ratios):.2f} | {aside} |"
                    )
    return lines


def random(rows: list[dict[str, Any]]) -> list[str]:
    lines = ["| kind | L0, B, I, H | links | segments | steps | torch.nn ms | auto ms | ratio |", "|" + "---|" * 8]
    for row in rows:
        size, links = ", ".join(map(str, row["size"])), "per lane" if row["lanes"] else "shared"
        lines.append(
            f"| {row['kind']} | {size} | {links} | {row['lengths']} | {row['steps']} | {row['ms']['torch.nn']:.0f} | "
            f"{row['ms']['auto']:.0f} | {row['ratio']:.2f} |"
        )
    for kinds in (("tf32", "bf16"), ("fp32",)):
        ratios = [row["ratio"] for row in rows if row["kind"] in kinds]
        lines.append(f"| {' + '.join(kinds)} | mean of all | | | | | | {mean(ratios):.3f}, worst {max(ratios):.2f} |")
    return lines


def main() -> None:
    result = json.loads(Path(sys.argv[1]).read_text())
    print(", ".join(f"{key} {value}" for key, value in result["environment"].items()) + "\n")
    modes = list(dict.fromkeys(map(mode_of, result["fixed"])))
    for mode in modes:
        if modes != ["LSTM"]:
            print(f"## {mode}\n")
        of_mode = {part: [row for row in result[part] if mode_of(row) == mode] for part in ("fixed", "random")}
        print("Forward and backward, T = L0; variants as ratios to torch.nn (cuDNN)\n")
        print("\n".join(fixed(of_mode["fixed"])))
        print("\nGeometric means over the eight sizes\n")
        print("\n".join(means(of_mode["fixed"])))
        if of_mode["random"]:
            print("\nSampled lengths (alpha = 4), one layer, the same list for both\n")
            print("\n".join(random(of_mode["random"])))


if __name__ == "__main__":
    main()
