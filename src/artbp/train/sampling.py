"""Text out of a trained model, character by character."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from artbp.train.corpus import CorpusError
from artbp.train.loading import Trained

_BEFORE = ("\n", " ")  # what a text that begins with nothing is taken to follow


def sample(trained: Trained, prompt: str, *, length: int, temperature: float, seed: int) -> Iterator[str]:
    """The `length` characters that follow `prompt`, each as soon as it is drawn.

    They are drawn from ``softmax(logits / temperature)``, by a generator of their own; with temperature 0 each is the
    likeliest one. The state is zero before the prompt, and carried from there on. The symbol for unknown characters is
    never drawn: training has not met it, and it stands for no character.
    """
    model, vocabulary = trained.model, trained.vocabulary
    generator = torch.Generator().manual_seed(seed)
    known = vocabulary.characters
    symbols = vocabulary.encode(prompt or next((before for before in _BEFORE if before in known), known[0]))
    x = torch.tensor(symbols.tolist(), device=trained.device)[:, None]  # (T, 1)
    state = None
    with torch.no_grad():
        for _ in range(length):
            with trained.autocast():
                logits, state = model(x, state)
            symbol = _draw(logits[-1, 0, : len(known)].double().cpu(), temperature, generator)
            yield known[symbol]
            x = torch.full((1, 1), symbol, device=trained.device)


def unseen(trained: Trained, prompt: str) -> list[str]:
    """The characters of the prompt that training never met; refused where the vocabulary has no symbol for them."""
    found = [character for character in dict.fromkeys(prompt) if trained.vocabulary.unseen(character)]
    if found and not trained.vocabulary.unknown:
        known = "".join(trained.vocabulary.characters)
        raise CorpusError(
            f"the prompt holds {', '.join(map(repr, found))}, for which this model has no symbol: training never met "
            "it.",
            f"Use the characters that it knows: {known!r}",
        )
    return found


def _draw(logits: Tensor, temperature: float, generator: torch.Generator) -> int:
    if not torch.isfinite(logits).all():
        raise CorpusError(
            "the model's logits are no finite numbers: something in it has overflown.",
            "Pass --checkpoint best, or train again with a lower --lr.",
        )
    if temperature == 0:
        return int(logits.argmax())
    # The largest logit goes first: a small temperature would have the others overflow before softmax takes it off.
    probabilities = torch.softmax((logits - logits.max()) / temperature, 0)
    return int(torch.multinomial(probabilities, 1, generator=generator))
