r"""A trained model as one file of weights, which torch.nn alone can use.

The names are those of the model's `state_dict`, and below `recurrent.` those of torch.nn.LSTM (GRU, RNN): artbp's
layers have the same parameters, and what they add, the links, is a matter of the gradient. The metadata holds, as
JSON, "config" (the options of the run) and "vocabulary" ("characters", each at the index that is its symbol, and
"unknown": whether there is one symbol more for all others). This reads an LSTM on one-hot symbols without artbp:

.. code-block:: python

    import json, torch, safetensors
    from safetensors.torch import load_file

    with safetensors.safe_open("model.safetensors", "pt") as file:
        config, vocabulary = (json.loads(file.metadata()[name]) for name in ("config", "vocabulary"))
    symbols = len(vocabulary["characters"]) + vocabulary["unknown"]
    model = torch.nn.Module()
    model.recurrent = torch.nn.LSTM(symbols, config["hidden"], config["layers"])
    model.decoder = torch.nn.Linear(config["hidden"], symbols)
    model.load_state_dict(load_file("model.safetensors"))

after which the logits of what follows a text are

.. code-block:: python

    text = torch.tensor([vocabulary["characters"].index(character) for character in "the "])
    output, state = model.recurrent(torch.nn.functional.one_hot(text, symbols).float())  # (T, H)
    logits = model.decoder(output)  # (T, V)

With `--embedding E` there is `embedding`, a torch.nn.Embedding(symbols, E), before the layer, and with `--layer-norm`
there is `norm`, a torch.nn.LayerNorm, after it.
"""

from __future__ import annotations

import json

import safetensors.torch

from artbp._version import __version__
from artbp.train.loading import Trained

FORMAT = "1"
_OF_THE_MACHINE = ("corpus", "ptb")  # where files lie is nobody else's business


def exported(trained: Trained) -> bytes:
    """The file's content."""
    config = {name: value for name, value in trained.config.items() if name not in _OF_THE_MACHINE}
    metadata = {
        "format": "pt",  # what safetensors' readers look for
        "artbp": __version__,
        "artbp_format": FORMAT,
        "epoch": str(trained.epoch),
        "config": json.dumps(config),
        "vocabulary": json.dumps(trained.vocabulary.to_json()),
    }
    weights = {name: weight.detach().cpu().contiguous() for name, weight in trained.model.state_dict().items()}
    return safetensors.torch.save(weights, metadata)
