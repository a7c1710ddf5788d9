"""What a fit learns from: a text, labels or pairs; each in its own file."""

from parformer.fitting.kinds.base import Kind
from parformer.fitting.kinds.labels import Labels
from parformer.fitting.kinds.language import Language
from parformer.fitting.kinds.pairs import Pairs
from parformer.fitting.request import FitRequest

KINDS: dict[str, type[Kind]] = {"text": Language, "labels": Labels, "pairs": Pairs}


def find_kind(request: FitRequest) -> Kind:
    """What this fit learns from."""
    return KINDS[request.kind](request)
