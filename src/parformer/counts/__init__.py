"""What can be counted need not be learned: n-grams of a text in a table of so many bytes.

>>> import numpy as np
>>> text = np.frombuffer(b"to be or not to be, that is the question " * 9, np.uint8)
>>> table = count(text, vocab_size=256, size=4096)
>>> chances = np.exp(look(table, np.frombuffer(b"questio", np.uint8)[None]))
>>> chr(chances[0, -1].argmax()), bool(np.allclose(chances.sum(-1), 1, atol=1e-5))
('n', True)
"""

from parformer.counts.count import count, count_without
from parformer.counts.look import log_chances, look
from parformer.counts.table import Layout

__all__ = ["Layout", "count", "count_without", "log_chances", "look"]
