"""What does a trained model tell of a text? `pf.predict` is this package, called."""

from parformer.verbs import speak

speak(__name__, "parformer.predict.request:predict")
