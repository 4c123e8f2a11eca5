"""From a directory, a hub id or nothing to a policy, and back to a directory that plain `transformers` loads.

Invariant: a loaded policy is proven (`check`) and has no randomness left; a saved one holds nothing of Strop.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# (transformers, tokenizers and torch are partly untyped)

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
import transformers.utils.logging
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig, PreTrainedModel, PreTrainedTokenizerBase

from strop.core.errors import UsageError
from strop.core.source import ModelSource
from strop.model.attention import NAME
from strop.model.policy import Policy, check, freeze_randomness
from strop.model.tiny import tiny

transformers.utils.logging.disable_progress_bar()  # a line for each model that is loaded tells nobody anything

_HUB_ID = re.compile(r"\w[\w.-]*/\w[\w.-]*")


def load(source: ModelSource) -> Policy:
    """Load a policy, ready for engine and learner.

    The tokenizer may lack a chat template: the caller gives it one (`codec.chat.with_default_template`).

    Raises:
        UsageError: nothing to load, a device that is not there, or a model that is not supported.
    """
    _check_device(source.device)
    if (source.path is None) == (source.preset is None):
        raise UsageError(f"path={source.path!r}, preset={source.preset!r}: name one model, either by path or by preset")
    if source.path is None:
        sizes = (source.width, source.layers, source.heads, source.context)
        model, tokenizer = tiny(source.pieces, *sizes, seed=source.seed, closed=source.closed)
    else:
        model, tokenizer = _from_path(source.path, getattr(torch, source.dtype))
    held: Any = model  # `to` is typed for its decorator, not its use
    return prepare(held.to(getattr(torch, source.dtype)), tokenizer, source.device, source.checkpointing)


def prepare(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, device: str = "cpu", checkpointing: bool = False
) -> Policy:
    """Make a policy of a model at hand: packed attention, no dropout, proven on a probe. Changes the model in place."""
    held: Any = model
    try:
        held.set_attn_implementation(NAME)
    except ValueError as error:
        raise UsageError(
            f"{type(model).__name__} cannot use another attention implementation ({error}). Choose another model."
        ) from error
    held.to(device)
    freeze_randomness(model)
    if checkpointing:
        held.activation_checkpointing_enable({"use_reentrant": False})
        held.train()  # layers are recomputed in training mode only; no dropout is left to be woken by it
    head: Any = held.get_output_embeddings()
    if not isinstance(head, torch.nn.Linear):
        raise UsageError(f"{type(model).__name__} has no plain linear output layer. Choose another language model.")
    notes: list[str] = []
    known: int = max(tokenizer.get_vocab().values()) + 1
    if known > head.out_features:
        notes.append(f"the tokenizer knows {known} ids, the model only {head.out_features}: the others cannot be used")
    policy = Policy(model, tokenizer, min(known, head.out_features), tuple(notes))
    check(policy)
    return policy


def generation_stop_ids(policy: Policy) -> frozenset[int]:
    """End-of-sequence ids of the model's generation config (it may name none, one or several)."""
    config: Any = policy.model.generation_config
    found: int | Iterable[int] | None = getattr(config, "eos_token_id", None)
    if found is None:
        return frozenset()
    return frozenset([found] if isinstance(found, int) else found)


def save(policy: Policy, directory: str | Path) -> None:
    """Write weights (tied ones once), config, generation config and tokenizer with chat template.

    Weights and config have the dtype that was trained. The directory is made; files of the same name are replaced.
    """
    target = Path(directory)
    if target.exists() and not target.is_dir():
        raise UsageError(f"{target} is a file; name a directory to write the model to")
    model: Any = policy.model
    model.save_pretrained(target)
    policy.tokenizer.save_pretrained(target)


def _check_device(device: str) -> None:
    there = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if not there.get(device, False):
        usable = ", ".join(name for name, here in there.items() if here)
        raise UsageError(f"device {device!r} is not available on this machine; available: {usable}")


def load_tokenizer(source: ModelSource) -> PreTrainedTokenizerBase:
    """The tokenizer alone, without the weights. Raises `UsageError` as `load` does."""
    if source.path is None:
        return tiny(source.pieces, 2 * source.heads, 1, source.heads, closed=source.closed)[1]
    name, options = _locate(source.path)
    try:
        tokenizer: Any = AutoTokenizer.from_pretrained(name, **options)
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise UsageError(f"cannot load a tokenizer from {source.path}: {error}") from error
    return tokenizer


def _locate(path: str) -> tuple[str, dict[str, Any]]:
    """What to give `from_pretrained`: a directory or hub id, and the name of a GGUF file in it."""
    place = Path(path).expanduser()
    name, options = str(place), dict[str, Any]()
    if place.suffix == ".gguf":
        name, options = str(place.parent), {"gguf_file": place.name}
    # "models/mine" could be a hub id; it is not one if a directory "models" is here. Asking the hub may take a minute.
    remote = _HUB_ID.fullmatch(path) is not None and not options and not place.parent.is_dir()
    if not place.exists() and not remote:
        raise UsageError(f"no model at {place}: no such file or directory. Check it, or name a hub id (owner/name)")
    if place.is_dir() and not (place / "config.json").is_file():
        raise UsageError(f"{path} is no model directory (it has no config.json). Give one that has, or a .gguf file.")
    return name, options


def _from_path(path: str, dtype: torch.dtype) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    name, options = _locate(path)
    # Packed blocks of a GGUF file can neither be trained nor saved.
    unpack = {"quantization_config": GgufConfig(dequantize=True)} if options else dict[str, Any]()
    try:
        tokenizer: Any = AutoTokenizer.from_pretrained(name, **options)
        model: Any = AutoModelForCausalLM.from_pretrained(name, dtype=dtype, **options, **unpack)
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise UsageError(f"cannot load a causal language model from {path}: {error}") from error
    return model, tokenizer
