"""What does plain counting reach on the text that a model was just scored on?"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from parformer.evaluate.counting import References


def in_a_line(known: References, unit: str, per_token: float) -> str:
    """All references in bits, or as perplexities.

    `per_token` is how many bytes or characters a token stands for, where bits are told.
    """
    import math

    def told(loss: float) -> str:
        if unit == "perplexity":
            return f"{math.exp(min(loss, 700)):,.4g}"
        return f"{loss / math.log(2) / per_token:.3f}"

    words = [f"{name} {told(loss)}" for name, loss in known.lines(letters=unit != "perplexity")]
    return f"counting: {', '.join(words)} {unit}"


def verdict(loss: float, known: References) -> str:
    """What a score is worth beside them."""
    if loss >= known.bigram:
        return "It learned less than counting pairs gives; train it longer, or at a lower rate."
    who, reached = known.best
    if loss >= reached:
        return f"{who[0].upper()}{who[1:]} is still {loss / reached - 1:.1%} better."
    return f"It is {1 - loss / reached:.1%} better than {who}."
