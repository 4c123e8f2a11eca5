"""Packed rows are the model's own rows: they do not leak, and models whose attention is another one are refused."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    CohereConfig,
    CohereForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from strop.core.errors import UsageError
from strop.model.attention import RowsLayout
from strop.model.load import ModelSource, load, prepare
from strop.model.policy import Policy
from tests.families import FAMILIES, byte_bpe

LENGTHS = [7, 7, 3, 12, 1, 11]


@pytest.fixture(scope="module", params=["tiny", *FAMILIES])
def policy(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Policy:
    if request.param == "tiny":
        return load(ModelSource(preset="tiny", width=32, heads=2))
    return load(ModelSource(path=str(FAMILIES[request.param](tmp_path_factory.mktemp(request.param)))))


def rows(policy: Policy) -> list[torch.Tensor]:
    draw = torch.Generator().manual_seed(3)
    return [torch.randint(policy.vocabulary, (n,), generator=draw) for n in LENGTHS]


def packed(policy: Policy, ids: list[torch.Tensor], lengths: list[int]) -> list[torch.Tensor]:
    """Logits of each row; `lengths` is what the layout is told."""
    positions = torch.cat([torch.arange(len(row)) for row in ids])
    with torch.no_grad():
        hidden = policy.hidden(torch.cat(ids), positions, RowsLayout(lengths, torch.device("cpu")))
    return list(policy.logits(hidden).split([len(row) for row in ids]))


@pytest.mark.parametrize("changed", range(len(LENGTHS)))
def test_other_rows_do_not_see_a_changed_row(policy: Policy, changed: int) -> None:
    ids = rows(policy)
    before = packed(policy, ids, LENGTHS)
    ids[changed] = (ids[changed] + 1) % policy.vocabulary
    after = packed(policy, ids, LENGTHS)
    for row, (old, new) in enumerate(zip(before, after, strict=True)):
        worst = (old - new).abs().max().item()
        assert worst > 1e-3 if row == changed else worst < 1e-6


def test_rows_leak_when_the_layout_is_told_of_one_row_only(policy: Policy) -> None:
    ids = rows(policy)
    whole = [sum(LENGTHS)]
    before = packed(policy, ids, whole)
    ids[0] = (ids[0] + 1) % policy.vocabulary
    assert (before[1] - packed(policy, ids, whole)[1]).abs().max().item() > 1e-5


def test_packed_logits_are_those_of_each_row_alone(policy: Policy) -> None:
    ids = rows(policy)
    ours = packed(policy, ids, LENGTHS)
    for row, logits in zip(ids, ours, strict=True):
        alone = packed(policy, [row], [len(row)])[0]
        assert (logits - alone).abs().max().item() < 1e-5


def test_a_later_token_changes_nothing_before_it(policy: Policy) -> None:
    ids = rows(policy)
    before = packed(policy, ids, LENGTHS)[3]
    ids[3][8] = (ids[3][8] + 1) % policy.vocabulary
    after = packed(policy, ids, LENGTHS)[3]
    assert (before[:8] - after[:8]).abs().max().item() < 1e-6
    assert (before[8:] - after[8:]).abs().max().item() > 1e-4


def test_a_call_without_a_layout_is_an_error(policy: Policy) -> None:
    with pytest.raises(RuntimeError, match="without a layout"):
        policy.model(input_ids=torch.tensor([[1, 2]]))


SIZES: dict[str, Any] = {
    "vocab_size": 300,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 0,
    "eos_token_id": 0,
}
FULL = ["full_attention", "full_attention"]

REFUSED: dict[str, Callable[[], PreTrainedModel]] = {
    "mistral with a window": lambda: MistralForCausalLM(MistralConfig(**SIZES, sliding_window=32)),
    "qwen2 with a window": lambda: Qwen2ForCausalLM(
        Qwen2Config(**SIZES, use_sliding_window=True, sliding_window=32, max_window_layers=1)
    ),
    "gemma2": lambda: Gemma2ForCausalLM(Gemma2Config(**SIZES)),
    "gemma2 with capped scores only": lambda: Gemma2ForCausalLM(
        Gemma2Config(**SIZES, layer_types=FULL, final_logit_softcapping=None, attn_logit_softcapping=50.0)
    ),
    "gemma2 with capped logits only": lambda: Gemma2ForCausalLM(
        Gemma2Config(**SIZES, layer_types=FULL, final_logit_softcapping=0.5, attn_logit_softcapping=None)
    ),
    "cohere with scaled logits": lambda: CohereForCausalLM(CohereConfig(**SIZES, logit_scale=0.0625)),
}

TAKEN: dict[str, Callable[[], PreTrainedModel]] = {
    "mistral without a window": lambda: MistralForCausalLM(MistralConfig(**SIZES, sliding_window=None)),
    "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**SIZES)),
    "gemma2 without any cap": lambda: Gemma2ForCausalLM(
        Gemma2Config(**SIZES, layer_types=FULL, final_logit_softcapping=None, attn_logit_softcapping=None)
    ),
}


def _tokenizer() -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(tokenizer_object=byte_bpe(("<e>",)), eos_token="<e>")


@pytest.mark.parametrize("name", REFUSED)
def test_a_model_whose_logits_or_attention_are_another_is_refused(name: str) -> None:
    torch.manual_seed(0)
    with pytest.raises(UsageError, match=r"[Cc]hoose (a|another) model"):
        prepare(REFUSED[name](), _tokenizer())


@pytest.mark.parametrize("name", TAKEN)
def test_the_same_kind_of_model_without_it_is_taken(name: str) -> None:
    torch.manual_seed(0)
    assert prepare(TAKEN[name](), _tokenizer()).vocabulary == 300


def test_dropout_is_off_even_in_training_mode(tmp_path: Path) -> None:
    policy = load(ModelSource(path=str(FAMILIES["gpt2"](tmp_path)), checkpointing=True))
    assert policy.model.training and policy.model.config.resid_pdrop > 0
    ids = rows(policy)
    for first, second in zip(packed(policy, ids, LENGTHS), packed(policy, ids, LENGTHS), strict=True):
        assert torch.equal(first, second)
