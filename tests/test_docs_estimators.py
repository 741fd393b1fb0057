"""The code of the pages on estimators and diagnostics runs, and says what the pages say."""

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parent.parent / "docs"


@pytest.mark.parametrize("page", ["choosing-an-estimator", "does-truncation-hurt"])
def test_the_code_of_a_page_runs(page, capsys):
    names = {}
    for code in re.findall(r"^```python\n(.*?)^```", (DOCS / f"{page}.md").read_text(encoding="utf-8"), re.S | re.M):
        exec(code, names)
    if page == "does-truncation-hurt":
        assert "Use ARTBP(PowerLaw(mean=10" in capsys.readouterr().out
        assert names["found"].fading == pytest.approx(0.97, rel=1e-3)


def test_every_estimator_and_diagnostic_is_documented():
    from artbp import diagnostics, estimators

    api = (DOCS / "api.md").read_text(encoding="utf-8")
    for module in (estimators, diagnostics):
        documented = set(re.findall(rf"^\.\. auto\w+:: {module.__name__}\.(\w+)", api, re.M))
        assert documented == set(module.__all__)
