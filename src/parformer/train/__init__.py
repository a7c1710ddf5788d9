"""From a recipe and a text to a model; `pf.train` is this package, called."""

from parformer.verbs import speak

speak(__name__, "parformer.train.request:train")
