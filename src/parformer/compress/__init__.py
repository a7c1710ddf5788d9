"""How does a model become smaller and faster, and what does that cost?

Called, the package is the verb: `pf.compress("first", limits=("size=1MB",))`.
"""

from parformer.verbs import speak

speak(__name__, "parformer.compress.job:compress")
