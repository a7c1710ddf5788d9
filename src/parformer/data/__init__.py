"""Where does text come from, and how does it become batches?"""

from parformer.data.corpora import Corpus, Listing, corpora, find_corpus
from parformer.store.download import fetch

__all__ = ["Corpus", "Listing", "corpora", "fetch", "find_corpus"]
