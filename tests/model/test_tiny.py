"""The model from nothing: every text round-trips, pieces are one token, weights depend on the seed only."""

from pathlib import Path

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from transformers import AutoTokenizer

from strop.core.errors import UsageError
from strop.model.tiny import SPECIAL, tiny

PIECES = ("guess ", " number", "higher", "<0x", "né", "a")
MODEL, TOKENIZER = tiny(PIECES, width=16, layers=1, heads=2)


@given(st.text())
@example("a number <0x41> é\x00\t\r\n<unk> <|end|> 日本 né ▁ \u2581x")
@example("  two  spaces ")
def test_any_text_comes_back_from_its_ids(text: str) -> None:
    for split in (False, True):
        ids = TOKENIZER.encode(text, add_special_tokens=False, split_special_tokens=split)
        assert TOKENIZER.decode(ids) == text
        assert max(ids, default=0) < MODEL.config.vocab_size


@pytest.mark.parametrize("piece", PIECES)
def test_a_piece_is_one_token_and_an_unknown_word_is_not(piece: str) -> None:
    assert len(TOKENIZER.encode(piece)) == 1
    assert len(TOKENIZER.encode(piece + piece)) == 2
    assert len(TOKENIZER.encode("lower")) == 5


def test_text_that_looks_like_a_byte_token_is_spelled_out() -> None:
    ids = TOKENIZER.encode("<0x41> <unk>")
    assert not set(ids) & set(TOKENIZER.convert_tokens_to_ids(["<0x41>", "<unk>"]))
    assert TOKENIZER.convert_tokens_to_ids("<0xC3>") in TOKENIZER.encode("é")  # what byte tokens are for


def test_saving_and_loading_gives_the_same_tokenizer(tmp_path: Path) -> None:
    TOKENIZER.save_pretrained(tmp_path)
    again = AutoTokenizer.from_pretrained(tmp_path)
    text = "<|user|>guess a number\n née <0x41><|end|>"
    assert again.encode(text) == TOKENIZER.encode(text)
    assert again.decode(again.encode(text)) == text
    assert again.get_vocab() == TOKENIZER.get_vocab() and again.chat_template == TOKENIZER.chat_template
    assert (again.eos_token, again.pad_token) == ("<|end|>", "<|pad|>")


def test_weights_depend_on_the_seed_and_leave_the_global_stream_alone() -> None:
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    first, _ = tiny((), width=16, layers=1, heads=2, seed=5)
    assert torch.equal(torch.rand(3), expected)
    second, _ = tiny((), width=16, layers=1, heads=2, seed=5)
    other, _ = tiny((), width=16, layers=1, heads=2, seed=6)
    for name, weight in first.state_dict().items():
        assert torch.equal(weight, second.state_dict()[name])
    assert not torch.equal(first.lm_head.weight, other.lm_head.weight)


def test_the_head_is_the_embedding_and_has_a_row_for_every_id() -> None:
    assert MODEL.lm_head.weight is MODEL.model.embed_tokens.weight
    assert MODEL.lm_head.weight.shape[0] == len(TOKENIZER) == max(TOKENIZER.get_vocab().values()) + 1
    assert MODEL.generation_config.eos_token_id == TOKENIZER.eos_token_id


@pytest.mark.parametrize("piece", ["", "<|end|>", "a<|user|>", "<0x41>", "<unk>"])
def test_pieces_that_would_break_the_tokenizer_are_refused(piece: str) -> None:
    with pytest.raises(UsageError, match="leave them out"):
        tiny(["fine", piece])


@pytest.mark.parametrize("sizes", [{"width": 30}, {"heads": 0}, {"layers": 0}, {"width": 8, "heads": 8}])
def test_sizes_that_do_not_fit_are_refused(sizes: dict[str, int]) -> None:
    with pytest.raises(UsageError, match="multiple of 2 x heads"):
        tiny((), **sizes)


def test_a_closed_vocabulary_has_the_pieces_and_nothing_else() -> None:
    model, tokenizer = tiny(("higher", "lower", "1", "12"), width=16, layers=1, heads=2, closed=True)
    assert set(tokenizer.get_vocab()) == {"<unk>", "higher", "lower", "1", "12", *SPECIAL}
    assert model.config.vocab_size == 11
    assert tokenizer.decode(tokenizer.encode("12higher1")) == "12higher1"
    assert set(tokenizer.encode("12 or é")) == {tokenizer.encode("12")[0], 0}
