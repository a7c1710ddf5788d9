"""How does a model leave the house? `pf.export` is this package, called."""

from parformer.verbs import speak

speak(__name__, "parformer.export.request:export")
