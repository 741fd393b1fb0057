"""Configuration of the documentation: `sphinx-build -W --keep-going -n docs docs/_build/html`."""

import sys
from pathlib import Path

from artbp._version import __version__

sys.path.insert(0, str(Path(__file__).parent / "_extensions"))

project = "artbp"
author = "The artbp contributors"
copyright = author  # noqa: A001 (the name that Sphinx reads)
version = release = __version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "mathml",
    "docstrings",
    "self_contained",
]
exclude_patterns = ["_build"]
default_role = "code"  # `name` in a docstring
myst_enable_extensions = ["dollarmath", "colon_fence", "deflist"]
myst_heading_anchors = 3
html_math_renderer = "mathml"
math_number_all = False

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True
napoleon_use_rtype = False
# Names that are written in signatures and documented by others, whose inventories a build must not need a network for.
# Private names of types are documented where they are used.
nitpick_ignore_regex = [
    ("py:.*", r"artbp\.(\w+\.)*_\w+(\.\w+)?"),
    ("py:.*", r"(torch|numpy|np|collections|typing)\..*"),
    (
        "py:.*",
        r"(Tensor|Module|Generator|ndarray|Callable|Iterable|Iterator|Mapping|Sequence|Any|optional|default: .*)",
    ),
]
html_theme = "furo"
html_title = "artbp"
html_static_path = ["_static"]
html_css_files = ["formulas.css", "pages.css"]
html_show_sphinx = False
html_copy_source = False
html_theme_options = {
    "source_repository": "https://github.com/artbp/artbp/",
    "source_branch": "main",
    "source_directory": "docs/",
}
