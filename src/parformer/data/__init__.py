"""Where does text come from, and how does it become batches?"""

from parformer.data.corpora import Corpus, Listing, cache_folder, corpora, find_corpus
from parformer.data.download import fetch

__all__ = ["Corpus", "Listing", "cache_folder", "corpora", "fetch", "find_corpus"]
