"""How do clients elsewhere use a model? `pf.serve` is this package, called."""

from parformer.verbs import speak

speak(__name__, "parformer.serve.request:serve")
