"""How good is a model on text it never saw? `pf.evaluate` is this package, called."""

from typing import TYPE_CHECKING

from parformer.verbs import speak

if TYPE_CHECKING:
    from parformer.evaluate.perplexity import Score as Score
    from parformer.evaluate.perplexity import evaluate as evaluate

PERPLEXITY = "parformer.evaluate.perplexity"

speak(
    __name__, "parformer.evaluate.request:evaluate", {"Score": PERPLEXITY, "evaluate": PERPLEXITY}
)
