"""The layers of the package: a module imports only from those above it in this list.

The imports are read from the source, those inside functions too, so that nothing has to be imported, or to exist yet.
`from artbp import PowerLaw` counts as an import of the whole library and is for the leaves alone.
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "src" / "artbp"
CORE = [
    *("_version", "_tree", "_law", "_beta_geometric", "laws", "_derived", "_link", "truncation"),
    *("_replay", "_step", "_boundary", "_windows", "_backprop"),
]
LAYERS = [*CORE, "ops", "nn", "estimators", "diagnostics", "data", "_folder", "_figure"]
LEAVES = ["train", "experiments"]  # import the layers and the package itself, and ignore each other
# Import whatever they show; of these, _plot is the command that draws the results of either leaf.
ENTRIES = ["cli", "__main__", "__init__", "_plot"]
PEERS = "estimators"  # its modules ignore each other, apart from those whose name begins with an underscore
FOREIGN = {"torch", "numpy", "triton"}  # what else a layer may import; the rest of the dependencies serve the leaves
OWN = {"_figure": {"matplotlib"}}  # what one layer alone may import, beyond that


def modules(package: Path) -> list[Path]:
    return sorted(package.rglob("*.py"))


def dotted(package: Path, path: Path) -> str:
    return ".".join(["artbp", *path.relative_to(package).with_suffix("").parts]).removesuffix(".__init__") or "artbp"


def imports(package: Path, path: Path) -> set[str]:
    """Everything a file imports, as dotted names of modules; names out of a module stand for the module."""
    here = ["artbp", *path.relative_to(package).parts]
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            start = [*here[: -node.level]] if node.level else []
            source = ".".join([*start, *(node.module or "").split(".")]).strip(".")
            found.update(_module_or_name(package, source, alias.name) for alias in node.names)
    return found


def _module_or_name(package: Path, source: str, name: str) -> str:
    if source.partition(".")[0] != "artbp":
        return source
    folder = package.joinpath(*source.split(".")[1:])
    is_module = (folder / f"{name}.py").exists() or (folder / name).is_dir()
    return f"{source}.{name}" if is_module else source


def violations(package: Path, path: Path) -> list[str]:
    module = dotted(package, path)
    layer = path.relative_to(package).parts[0].removesuffix(".py")
    if layer in ENTRIES:
        return []
    if layer not in LAYERS + LEAVES:
        return [f"{module} has no place in the layers: add {layer!r} to the list where it belongs"]
    allowed = [*LAYERS, layer] if layer in LEAVES else LAYERS[: LAYERS.index(layer) + 1]
    found = []
    for name in sorted(imports(package, path)):
        root, _, rest = name.partition(".")
        target = rest.partition(".")[0]
        if root != "artbp":
            if layer in LAYERS and root not in FOREIGN | OWN.get(layer, set()) | sys.stdlib_module_names:
                found.append(f"{module} imports {name}: a layer imports torch, numpy and the standard library only")
        elif not target:
            if layer in LAYERS:
                found.append(f"{module} imports the package itself: import from the module that defines the name")
        elif target not in allowed:
            found.append(f"{module} imports {name}, which does not stand above it")
        elif layer == target == PEERS and _is_other_peer(module, name):
            found.append(f"{module} imports its peer {name}: what two share goes into a module with an underscore")
    return found


def _is_other_peer(module: str, name: str) -> bool:
    peer, other = ((*dotted_name.split("."), "", "")[2] for dotted_name in (module, name))
    return bool(peer) and peer != other and not other.startswith("_")


@pytest.mark.parametrize("path", modules(PACKAGE), ids=lambda path: dotted(PACKAGE, path))
def test_a_module_imports_only_from_above(path):
    assert not violations(PACKAGE, path)


@pytest.mark.parametrize(
    ("file", "line", "complaint"),
    [
        ("laws.py", "from artbp.truncation import Truncation", "artbp.truncation, which does not stand above"),
        ("laws.py", "from artbp import truncation", "artbp.truncation, which does not stand above"),
        ("laws.py", "from . import truncation", "artbp.truncation, which does not stand above"),
        ("laws.py", "from .truncation import Truncation", "artbp.truncation, which does not stand above"),
        ("ops/naive.py", "from ..nn import LSTM", "artbp.nn, which does not stand above"),
        ("laws.py", "def late():\n    import artbp.truncation", "artbp.truncation, which does not stand above"),
        ("laws.py", "from artbp import Truncation", "the package itself"),
        ("laws.py", "import artbp", "the package itself"),
        ("_link.py", "import matplotlib.pyplot", "torch, numpy and the standard library only"),
        ("data.py", "from artbp.train import run", "artbp.train.run, which does not stand above"),
        ("train/run.py", "from artbp.experiments import balancing", "artbp.experiments.balancing, which does not"),
        ("experiments/balancing.py", "from artbp._plot import draw", "artbp._plot, which does not stand above it"),
        ("_folder.py", "import matplotlib", "torch, numpy and the standard library only"),
        ("_figure.py", "import tqdm", "torch, numpy and the standard library only"),
        ("experiments/balancing.py", "import artbp.cli", "artbp.cli, which does not stand above"),
        ("estimators/uoro.py", "from artbp.estimators.rtrl import RTRL", "its peer artbp.estimators.rtrl"),
        ("estimators/uoro.py", "from .rtrl import RTRL", "its peer artbp.estimators.rtrl"),
        ("helpers.py", "", "has no place in the layers"),
    ],
)
def test_the_contract_can_fail(file, line, complaint, tmp_path):
    for name in ("truncation.py", "nn.py", "train/run.py", "experiments/balancing.py", "estimators/rtrl.py", file):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / file).write_text(line)
    (found,) = violations(tmp_path, tmp_path / file)
    assert complaint in found


@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("truncation.py", "from artbp.laws import Law\nfrom artbp._tree import Tree\nimport math, torch"),
        ("estimators/uoro.py", "from artbp.estimators._family import Family\nfrom . import _family\nimport artbp.laws"),
        ("estimators/__init__.py", "from artbp.estimators.rtrl import RTRL"),
        ("experiments/balancing.py", "import artbp, tyro\nfrom artbp import PowerLaw\nfrom . import figures"),
        ("cli.py", "import artbp.experiments.balancing"),
        ("_plot.py", "import artbp.experiments.balancing, artbp.train.figures"),
        ("_figure.py", "from matplotlib.figure import Figure\nfrom artbp._folder import write_bytes"),
    ],
)
def test_what_the_contract_lets_pass(file, line, tmp_path):
    for name in ("laws.py", "estimators/_family.py", "estimators/rtrl.py", "experiments/figures.py", file):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / file).write_text(line)
    assert violations(tmp_path, tmp_path / file) == []
