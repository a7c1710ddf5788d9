"""Can a model read this: tokens, targets, token types, padding, a state?"""

from __future__ import annotations

import torch
from torch import Tensor

from parformer.config import ModelConfig
from parformer.embedding import IGNORE, check_tokens
from parformer.errors import InputError
from parformer.state import State


def check_inputs(
    config: ModelConfig,
    tokens: Tensor,
    targets: Tensor | None,
    token_types: Tensor | None,
    padding: Tensor | None,
    *,
    source: bool = False,
) -> None:
    """Refuse what a step cannot take; nothing goes on after a `source`."""
    check_tokens(tokens, config.vocab_size, "tokens")
    if targets is not None:
        if config.head == "none":
            raise InputError("this model has no head; build it with head='lm' or 'masked'")
        check_alike("targets", targets, tokens)
        check_tokens(targets.masked_fill(targets == IGNORE, 0), config.vocab_size, "targets")
    if token_types is not None:
        if not config.token_types:
            raise InputError("this model has no token types; set token_types=2 to build them")
        check_tokens(token_types, config.token_types, "token_types")
        check_alike("token_types", token_types, tokens)
    if padding is not None:
        check_padding(config, tokens, padding, source=source)


def check_alike(what: str, given: Tensor, tokens: Tensor) -> None:
    if given.shape != tokens.shape:
        raise InputError(
            f"{what} have shape {tuple(given.shape)}, tokens {tuple(tokens.shape)}; they must agree"
        )


def check_padding(
    config: ModelConfig, tokens: Tensor, padding: Tensor, *, source: bool = False
) -> None:
    pattern = config.pattern.encoder if source else config.pattern
    recurrent = [letter for letter in "ra" if pattern is not None and pattern.count(letter)]
    if recurrent and not (source and is_last(padding)):
        raise InputError(
            f"padding of shape {tuple(padding.shape)}, but a recurrence ({recurrent[0]} in "
            f"{str(config.pattern)!r}) reads every place; put what does not count last and leave "
            "padding out"
        )
    if padding.shape != tokens.shape or padding.dtype != torch.bool:
        raise InputError(
            f"padding must be torch.bool with the shape of tokens {tuple(tokens.shape)}, "
            f"got {padding.dtype} of shape {tuple(padding.shape)}"
        )


def is_last(padding: Tensor) -> bool:
    """Whether what does not count stands after all that does."""
    return not bool((padding[:, 1:] & ~padding[:, :-1]).any())


def check_state(config: ModelConfig, state: State, batch: int, *, training: bool) -> None:
    """Refuse a state that another model left, or another batch."""
    if not config.causal:
        raise InputError("a model that sees both sides carries no state; leave it out")
    if state.batch != batch:
        raise InputError(
            f"the state belongs to a batch of {state.batch}, the tokens to one of {batch}; "
            "start with initial_state or use the same batch"
        )
    if state.config is not config and state.config != config:
        raise InputError(
            f"the state belongs to another model, {state.config.family} "
            f"{str(state.config.pattern)!r} of width {state.config.d_model}, this one is "
            f"{config.family} {str(config.pattern)!r} of width {config.d_model}; "
            "start with initial_state"
        )
    if training and not state.trainable:
        raise InputError(
            "this state was made for inference; training starts from initial_state "
            "or goes on with a state of its own"
        )


def all_present(state: State, tokens: Tensor, padding: Tensor | None) -> Tensor | None:
    """Which of the remembered places and the new ones hold a token; None if all do."""
    if padding is None and state.padding_bm is None:
        return None
    if state.starts_b is not None and state.config.numbered:
        most, time = state.config.max_len, state.position + tokens.shape[1]
        if time > most:
            raise InputError(
                f"rows that began at different times cannot read {time} tokens in a window of "
                f"{most}; let each go on by itself"
            )
    ones = tokens.new_ones(tokens.shape, dtype=torch.bool)
    before = state.padding_bm
    if before is None:
        before = ones[:, :1].expand(-1, min(state.position, state.memory))
    return torch.cat((before, ones if padding is None else padding), dim=1)
