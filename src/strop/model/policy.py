"""A policy: a causal language model, its tokenizer and how many of its ids may be sampled.

Invariant: logits are `head(hidden)`, proven at construction on a probe, so that only the positions that need it pay for
the vocabulary.
"""

from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from strop.core.errors import UsageError
from strop.model.attention import NAME, Layout, RowsLayout


@dataclass(frozen=True, slots=True)
class Policy:
    """A model ready for engine and learner.

    Args:
        model: a `transformers` causal LM whose attention implementation is Strop's packed one, dropout off.
        tokenizer: its tokenizer, with a chat template.
        vocabulary: ids from here on are never sampled (the head may be padded beyond the tokenizer).
        notes: what was assumed at loading, to be said aloud.
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    vocabulary: int
    notes: tuple[str, ...] = field(default=())

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(self.model.parameters()).device

    @property
    def head(self) -> torch.nn.Linear:
        """The output layer."""
        return self.model.get_output_embeddings()  # type: ignore[return-value]  # checked by `check`

    @property
    def window(self) -> int | None:
        """Longest sequence that the model's positions allow, None if it does not say."""
        return getattr(self.model.config, "max_position_embeddings", None)

    def hidden(self, ids: torch.Tensor, positions: torch.Tensor, layout: Layout) -> torch.Tensor:
        """Last hidden states of a pack.

        Args:
            ids: token ids; [T].
            positions: position of each token in its own sequence; [T].
            layout: who attends to whom.

        Returns:
            [T, width].
        """
        body: Any = self.model.base_model
        out = body(input_ids=ids[None], position_ids=positions[None], use_cache=False, layout=layout)
        return out.last_hidden_state[0]

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits over the ids that may be sampled; [..., vocabulary]."""
        return self.head(hidden)[..., : self.vocabulary]


def freeze_randomness(model: PreTrainedModel) -> None:
    """Turn off every dropout, module and functional: fresh data must have ratio 1."""
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        for name in ("attention_dropout", "dropout", "hidden_dropout", "resid_dropout"):
            if isinstance(getattr(module, name, None), float):
                setattr(module, name, 0.0)
    model.eval()


def check(policy: Policy) -> None:
    """Prove on a probe that packed forward and head give the model's own logits; refuse the model if not.

    Models with soft-capped or scaled logits, sliding windows or linear attention fail here, before anything is trained.
    """
    model = policy.model
    if not isinstance(model.get_output_embeddings(), torch.nn.Linear):
        raise UsageError(
            f"{type(model).__name__} has no plain linear output layer; Strop cannot take its logits in chunks"
        )
    kinds = set(getattr(model.config, "layer_types", None) or ["full_attention"])
    if kinds != {"full_attention"}:
        raise UsageError(
            f"{type(model).__name__} has layers of kind {', '.join(sorted(kinds))}; only full attention is supported. "
            "Choose a model without sliding-window or linear attention."
        )
    low, high = 0, policy.vocabulary
    probe = torch.linspace(low, high - 1, 7, device=policy.device).long()
    positions = torch.arange(7, device=policy.device)
    with torch.no_grad():
        ours = policy.head(policy.hidden(probe, positions, RowsLayout([7], policy.device)))
        model.set_attn_implementation("eager")
        try:
            theirs = model(input_ids=probe[None], position_ids=positions[None], use_cache=False).logits[0]
        finally:
            model.set_attn_implementation(NAME)
    worst = (ours - theirs).abs().max().item()
    scale = max(1.0, theirs.abs().max().item())
    allowed = (1e-4 if ours.dtype == torch.float32 else 5e-2) * scale
    if not worst <= allowed:
        raise UsageError(
            f"{type(model).__name__}: packed logits differ from the model's own by {worst:.2g} (allowed {allowed:.2g}). "
            "The model scales or caps its logits or masks attention in a way that is not supported; choose another model."
        )
