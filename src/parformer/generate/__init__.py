"""How does a model write on? `pf.generate` is this package, called."""

from typing import TYPE_CHECKING

from parformer.verbs import speak

if TYPE_CHECKING:
    from parformer.generate.writing import Sampling as Sampling
    from parformer.generate.writing import generate as generate
    from parformer.generate.writing import generate_text as generate_text

WRITING = "parformer.generate.writing"

speak(
    __name__,
    "parformer.generate.request:generate",
    {"Sampling": WRITING, "generate": WRITING, "generate_text": WRITING},
)
