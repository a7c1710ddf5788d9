"""Do the papers' tables hold here? `pf.reproduce` is this package, called."""

from parformer.verbs import speak

speak(__name__, "parformer.reproduce.job:reproduce")
