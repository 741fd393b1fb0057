"""Errors have two parts: what was passed and why it cannot work, and what to do instead."""

import re

import pytest

VALUES = (ValueError, TypeError)


def check(call, error, what, instead):
    """The call raises one of the errors, whose message has words of the one part and of the other."""
    with pytest.raises(error) as caught:
        call()
    message = str(caught.value)
    assert re.search(what, message, re.IGNORECASE | re.DOTALL), f"does not say what was passed and why not: {message}"
    assert re.search(instead, message, re.IGNORECASE | re.DOTALL), f"does not say what to do instead: {message}"
    assert len(re.findall(r"[.:;]\s", message + " ")) >= 2, f"is not in two parts: {message}"
    assert type(caught.value) in (ValueError, TypeError, RuntimeError)
