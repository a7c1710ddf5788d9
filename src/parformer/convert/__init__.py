"""How do published weights come in?

Each function takes a state dict (tensors by name) and its configuration (a dict) and gives a
Parformer model with the same numbers: Hugging Face's models, the stacks of the package sru, and
Lite Transformer. What it cannot represent exactly it refuses; no weight is left over or made up in
silence.

One file each.
"""

from parformer.convert.albert import from_albert as from_albert
from parformer.convert.bert import from_bert as from_bert
from parformer.convert.distilbert import from_distilbert as from_distilbert
from parformer.convert.gpt2 import from_gpt2 as from_gpt2
from parformer.convert.ib_bert import from_ib_bert as from_ib_bert
from parformer.convert.lite import LITE_FIELDS as LITE_FIELDS
from parformer.convert.lite import from_lite_stack as from_lite_stack
from parformer.convert.lite import from_lite_transformer as from_lite_transformer
from parformer.convert.llama import from_llama as from_llama
from parformer.convert.mobilebert import from_mobilebert as from_mobilebert
from parformer.convert.sru import SRU_FIELDS as SRU_FIELDS
from parformer.convert.sru import from_sru as from_sru
from parformer.convert.srupp_translation import (
    from_srupp_translation as from_srupp_translation,
)
from parformer.convert.synthesizer import from_synthesizer as from_synthesizer
from parformer.convert.transformer_xl import from_transformer_xl as from_transformer_xl
from parformer.convert.translation import from_translation as from_translation
from parformer.convert.translator import Translator as Translator
