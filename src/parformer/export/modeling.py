"""A model of Parformer for Hugging Face's transformers; the package parformer computes it.

AutoModelForCausalLM.from_pretrained(FOLDER, trust_remote_code=True)
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from transformers import GenerationMixin, PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import (
    BaseModelOutput,
    CausalLMOutputWithPast,
    MaskedLMOutput,
    Seq2SeqLMOutput,
    SequenceClassifierOutput,
)

from parformer.blocks.base import Source
from parformer.config import ModelConfig
from parformer.model import Model
from parformer.state import State
from parformer.store.files import Json


class ParformerConfig(PretrainedConfig):
    """What the model is, in Parformer's own words under `parformer`."""

    model_type = "parformer"

    def __init__(self, parformer: Json | None = None, **more: Any) -> None:
        super().__init__(**more)
        self.parformer = parformer or {}

    def ours(self) -> ModelConfig:
        return ModelConfig.from_dict(self.parformer)


class Remembered:
    """The state of a text so far, as generation hands it from step to step."""

    is_compileable = False

    def __init__(self, state: State) -> None:
        self.state = state

    def get_seq_length(self, layer: int = 0) -> int:
        return self.state.position

    def reorder_cache(self, beam_idx: Tensor) -> None:
        self.state = self.state.rows(beam_idx)


class ParformerModel(PreTrainedModel):
    """What all heads share."""

    config_class = ParformerConfig
    base_model_prefix = "model"
    main_input_name = "input_ids"
    _tied_weights_keys: Any = None

    def __init__(self, config: ParformerConfig) -> None:
        super().__init__(config)
        self.model = Model(config.ours())
        first: dict[Tensor, str] = {}
        self.ties: list[tuple[str, str]] = []
        for name, weight in self.named_parameters(remove_duplicate=False):
            if weight in first:
                self.ties.append((name, first[weight]))
            first.setdefault(weight, name)
        self.post_init()

    def tie_weights(self, *given: Any, **more: Any) -> None:
        """Weights that are one in the model are one here."""
        for name, other in getattr(self, "ties", ()):
            path, _, leaf = name.rpartition(".")
            setattr(self.get_submodule(path), leaf, self.get_parameter(other))

    def _init_weights(self, module: nn.Module) -> None:
        """Every weight is in the folder."""

    def get_input_embeddings(self) -> nn.Module:
        return self.model.embedding.words

    @classmethod
    def _supports_default_dynamic_cache(cls) -> bool:
        return False

    def begin(self, batch: int, mask: Tensor | None) -> tuple[State, Tensor | None]:
        """The state before the first token, which padding on the left comes before."""
        config = self.model.config
        state = self.model.initial_state(batch, config.memory or config.step_len)
        if mask is None or bool(mask.all()):
            return state, None
        present = mask.bool()
        absent_b = present.long().argmax(1)  # what stands before the first token
        return replace(state, starts_b=absent_b), present

    def _reorder_cache(self, past: Remembered, beam_idx: Tensor) -> Remembered:
        past.reorder_cache(beam_idx)
        return past


class ParformerForCausalLM(ParformerModel, GenerationMixin):
    """A model that writes on."""

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        past_key_values: Remembered | None = None,
        use_cache: bool | None = None,
        return_dict: bool = True,
        **more: Any,
    ) -> CausalLMOutputWithPast:
        if past_key_values is None:
            state, present = self.begin(len(input_ids), attention_mask)
            if self.training:
                state = self.model.initial_state(len(input_ids), 0)
        else:
            state, present = past_key_values.state, None
        out = self.model(input_ids, state, padding=present)
        loss = None
        if labels is not None:
            loss = nn.functional.cross_entropy(
                out.logits[:, :-1].flatten(0, 1).float(), labels[:, 1:].flatten(), ignore_index=-100
            )
        past = None
        if not self.training and use_cache is not False:
            past = Remembered(out.state)
        return CausalLMOutputWithPast(loss=loss, logits=out.logits, past_key_values=past)

    def prepare_inputs_for_generation(
        self,
        input_ids: Tensor,
        past_key_values: Remembered | None = None,
        attention_mask: Tensor | None = None,
        use_cache: bool | None = None,
        **more: Any,
    ) -> Json:
        if past_key_values is not None:
            input_ids = input_ids[:, past_key_values.state.position :]
        return {
            "input_ids": input_ids,
            "past_key_values": past_key_values,
            "attention_mask": attention_mask,
            "use_cache": use_cache,
        }


class ParformerForMaskedLM(ParformerModel):
    """A model that tells masked words."""

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        labels: Tensor | None = None,
        **more: Any,
    ) -> MaskedLMOutput:
        out = self.model(input_ids, **self.given(attention_mask, token_type_ids))
        loss = None
        if labels is not None:
            loss = nn.functional.cross_entropy(out.logits.flatten(0, 1), labels.flatten())
        return MaskedLMOutput(loss=loss, logits=out.logits, hidden_states=(out.hidden,))

    def given(self, mask: Tensor | None, types: Tensor | None) -> Json:
        types = types if self.model.config.token_types else None
        return {"padding": None if mask is None else mask.bool(), "token_types": types}


class ParformerForSequenceClassification(ParformerForMaskedLM):
    """A model that tells labels."""

    def forward(self, input_ids: Tensor, **given: Any) -> SequenceClassifierOutput:
        named = (given.get("attention_mask"), given.get("token_type_ids"))
        out, labels = self.model(input_ids, **self.given(*named)), given.get("labels")
        loss = None
        if labels is not None:
            loss = nn.functional.cross_entropy(out.label_logits, labels)
        return SequenceClassifierOutput(loss=loss, logits=out.label_logits)


class Encoder(nn.Module):
    """What reads a source, as generation looks for it."""

    main_input_name = "input_ids"

    def __init__(self, whole: list[ParformerModel]) -> None:
        super().__init__()
        self.whole = whole  # a list, so that weights are not counted twice

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, **more: Any
    ) -> BaseModelOutput:
        mask = None if attention_mask is None else attention_mask.bool()
        read = self.whole[0].model.encode(input_ids, mask)
        return BaseModelOutput(last_hidden_state=read.vectors_bsd)


class ParformerForSeq2SeqLM(ParformerModel, GenerationMixin):
    """A model that translates."""

    def get_encoder(self, *given: Any, **more: Any) -> nn.Module:
        return Encoder([self])

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        encoder_outputs: Any = None,
        labels: Tensor | None = None,
        past_key_values: Remembered | None = None,
        use_cache: bool | None = None,
        **more: Any,
    ) -> Seq2SeqLMOutput:
        config = self.model.config
        if labels is not None and decoder_input_ids is None:
            first = torch.full_like(labels[:, :1], config.start)
            shifted = torch.cat((first, labels[:, :-1]), dim=1)
            decoder_input_ids = shifted.masked_fill(shifted == -100, max(config.pad, 0))
        mask = None if attention_mask is None else attention_mask.bool()
        state, source = None, None
        if past_key_values is not None:
            state = past_key_values.state
        elif encoder_outputs is not None:
            source = Source(encoder_outputs[0], mask)
        else:
            source = self.model.encode(input_ids, mask)
        if state is None:
            # a text of any length: nothing is forgotten
            state = self.model.initial_state(len(decoder_input_ids), 2**31)
        out = self.model(decoder_input_ids, state, source=source)
        loss = None
        if labels is not None:
            loss = nn.functional.cross_entropy(out.logits.flatten(0, 1).float(), labels.flatten())
        past = None if self.training or use_cache is False else Remembered(out.state)
        return Seq2SeqLMOutput(loss=loss, logits=out.logits, past_key_values=past)

    def prepare_inputs_for_generation(
        self,
        input_ids: Tensor,
        past_key_values: Remembered | None = None,
        attention_mask: Tensor | None = None,
        use_cache: bool | None = None,
        **more: Any,
    ) -> Json:
        if past_key_values is not None:
            input_ids = input_ids[:, -1:]
        return {
            "decoder_input_ids": input_ids,
            "past_key_values": past_key_values,
            "encoder_outputs": more.get("encoder_outputs"),
            "attention_mask": attention_mask,
            "use_cache": use_cache,
        }
