"""How good is a model on text it never saw?"""

from parformer.evaluate.perplexity import Score, evaluate

__all__ = ["Score", "evaluate"]
