"""Parts as text: `ppo(0.2, 0.28)`, `gae(lam=0.95, critic=critic(stopgrad))`. Invariant: reading what was written gives an
equal part, and a part has one way to be written.

The same notation stands in run files (`[algorithm] clip = "ppo(0.2, 0.28)"`), in the printed table and in the documents.
Text is parsed, never evaluated.
"""

import ast
import difflib
import sys
import types
import typing
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, Literal, cast, get_args, get_origin, get_type_hints

from strop.core import algorithm as parts
from strop.core import faults
from strop.core import guard as rules
from strop.core import guide as help
from strop.core import sampler as samplers
from strop.core.errors import UsageError
from strop.core.selection import Kept
from strop.core.source import Tiny

NAMES: dict[str, dict[str, type]] = {
    "credit": {
        "reward_to_go": parts.RewardToGo,
        "leave_one_out": parts.LeaveOneOut,
        "turn_leave_one_out": parts.TurnLeaveOneOut,
        "group_mean": parts.GroupMean,
        "batch_mean": parts.BatchMean,
        "gae": parts.GAE,
        "monte_carlo": parts.MonteCarlo,
        "process_group": parts.ProcessGroup,
        "above": parts.Above,
        "one": parts.One,
        "zero": parts.Zero,
    },
    "ratio": {
        "none": parts.NoRatio,
        "token": parts.TokenRatio,
        "turn": parts.TurnRatio,
        "prefix": parts.PrefixRatio,
        "trajectory": parts.TrajectoryRatio,
        "sequence": parts.SequenceRatio,
    },
    "clip": {
        "none": parts.NoClip,
        "ppo": parts.PPOClip,
        "weight": parts.WeightClip,
        "growing": parts.GrowingClip,
        "mask": parts.MaskClip,
        "soft": parts.SoftGate,
    },
    "correction": {
        "decoupled": parts.Decoupled,
        "truncate": parts.Truncate,
        "band": parts.Band,
        "second_moment": parts.SecondMoment,
        "off_policy_mask": parts.OffPolicyMask,
    },
    "aggregate": {
        "token_mean": parts.TokenMean,
        "group_token_mean": parts.GroupTokenMean,
        "sequence_mean": parts.SeqMeanTokenMean,
        "token_sum": parts.SeqMeanTokenSum,
        "constant": parts.Constant,
    },
    "terms": {
        "entropy": parts.Entropy,
        "entropy_target": parts.EntropyTarget,
        "observations": parts.Observations,
        "kl": parts.KL,
        "divergence": parts.Divergence,
        "sampled_divergence": parts.SampledDivergence,
        "overlong": parts.Overlong,
        "step_reward": parts.StepReward,
        "potential": parts.Potential,
        "process_labels": parts.ProcessLabels,
    },
    "guard": {
        "ratio": rules.WeightAbove,
        "ess": rules.EffectiveBelow,
        "gradient": rules.GradientAbove,
        "share": rules.ShareAbove,
        "clipped": rules.ClippedAbove,
        "kl": rules.KLAbove,
        "entropy_floor": rules.EntropyBelow,
        "entropy_ceiling": rules.EntropyAbove,
        "repetition": rules.RepetitionAbove,
        "longer": rules.LengthAbove,
        "shorter": rules.LengthBelow,
        "signal": rules.SignalBelow,
        "no_success": rules.NoSuccess,
        "mismatch": rules.MismatchAbove,
    },
    "preset": {"tiny": Tiny},
    "failed": {
        "partial": faults.Partial,
        "retry": faults.Retry,
        "refill": faults.Refill,
        "drop": faults.Drop,
    },
    "guide": {"demonstration": help.Demonstration, "hint": help.Hint},
    "sampler": {
        "uniform": samplers.Uniform,
        "learnable": samplers.Learnable,
        "failing": samplers.Failing,
        "target": samplers.Target,
        "easy_to_hard": samplers.EasyToHard,
        "retire": samplers.Retire,
    },
    "select": {"kept": Kept},
    "rounds": {"rounds": parts.Rounds},
    "inner": {"moving_average": parts.MovingAverage, "critic": parts.Critic},
}
"""Name of each part in run files, by kind. `inner` are values of other parts."""

_WORDS = {cls: name for kind in NAMES.values() for name, cls in kind.items()}


def word(part: object) -> str:
    """Name of a part in run files: `ppo`."""
    return _WORDS[type(part)]


def written(part: object) -> str:
    """A part as text, defaults left out; the first fields by position, later ones by name."""
    told: list[str] = []
    positional = True
    for f in fields(cast(Any, part)):
        value = getattr(part, f.name)
        if value == f.default:
            positional = False
            continue
        told.append(_value(value) if positional else f"{f.name}={_value(value)}")
    name = word(part)
    return f"{name}({', '.join(told)})" if told else name


def _value(value: object) -> str:
    if is_dataclass(value):
        return written(value)
    if isinstance(value, tuple):
        return "[" + ", ".join(_value(v) for v in cast("tuple[object, ...]", value)) + "]"
    return str(value)


def read(kind: str, text: str, where: str) -> Any:
    """The part that a text names.

    Args:
        kind: a key of `NAMES`.
        text: `ppo(0.2, high=0.28)`.
        where: the key it came from, for messages.

    Raises:
        UsageError: unknown part or option, or a value of a wrong type or range.
    """
    try:
        return _part(ast.parse(text.strip(), mode="eval").body, NAMES[kind], where)
    except UsageError:
        raise
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # what is no Python, and what nests without end
        shown = " ".join(text.split())[:80].encode("ascii", "backslashreplace").decode()
        raise UsageError(f'{where} = "{shown}" cannot be read; write it as name(value, option=value)') from None


def _part(node: ast.expr, known: dict[str, type], where: str) -> Any:
    call = node if isinstance(node, ast.Call) else None
    target = call.func if call else node
    word = target.id if isinstance(target, ast.Name) else "none" if _is_none(target) else ast.unparse(target)
    if word not in known:
        close = difflib.get_close_matches(word, known, n=1)
        hint = f"did you mean {close[0]}?" if close else f"known: {', '.join(known)}"
        raise UsageError(f"{where} {word!r} is unknown; {hint}")
    cls = known[word]
    hints = get_type_hints(cls)
    names = [f.name for f in fields(cls)]
    given: dict[str, ast.expr] = {}
    if call:
        if len(call.args) > len(names):
            raise UsageError(f"{where}: {word} takes at most {len(names)} values ({', '.join(names) or 'none'})")
        given = dict(zip(names, call.args, strict=False))
        for keyword in call.keywords:
            if keyword.arg not in names or keyword.arg in given:
                raise UsageError(
                    f"{where}: {keyword.arg!r} is no free option of {word}; options: {', '.join(names) or 'none'}"
                )
            given[keyword.arg] = keyword.value
    missing = [f.name for f in fields(cls) if f.default is MISSING and f.name not in given]
    if missing:
        raise UsageError(f"{where}: {word} needs {', '.join(missing)}")
    return cls(**{name: _read_value(value, hints[name], f"{where}: {word}.{name}") for name, value in given.items()})


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _read_value(node: ast.expr, hint: Any, where: str) -> Any:
    """A value of the annotated type: number, word, None, list of numbers or an inner part."""
    options = get_args(hint) if get_origin(hint) in (typing.Union, types.UnionType) else (hint,)
    inner = {n: c for n, c in NAMES["inner"].items() if c in options}
    if inner and (isinstance(node, ast.Call) or (isinstance(node, ast.Name) and node.id in inner)):
        return _part(node, inner, where)
    if any(get_origin(o) is tuple for o in options) and isinstance(node, ast.List):
        return tuple(_read_value(item, float, where) for item in node.elts)
    value: Any = _TRUTH.get(node.id, node.id) if isinstance(node, ast.Name) else _number(node)
    words = tuple(w for o in options if get_origin(o) is Literal for w in get_args(o))
    if value in words:
        return value
    if isinstance(value, bool):
        if bool in options:
            return value
    elif isinstance(value, int) and int in options:
        return value
    elif isinstance(value, int | float) and float in options and abs(value) <= sys.float_info.max:
        return float(value)
    elif type(None) in options and (value == "none" or _is_none(node)):
        return None
    kinds = [", ".join(words)] if words else []
    kinds += [_KINDS[o] for o in options if o in _KINDS] + list(inner)
    kinds += ["a list of numbers"] if any(get_origin(o) is tuple for o in options) else []
    raise UsageError(f"{where} is {ast.unparse(node)}; it must be {' or '.join(kinds)}")


_TRUTH: dict[str, bool | str] = {"true": True, "false": False}
"""As the rest of a run file writes it; `written` writes True."""

_KINDS: dict[Any, str] = {int: "a whole number", float: "a number", bool: "True or False", type(None): "none"}


def _number(node: ast.expr) -> Any:
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError):
        return ast.unparse(node)
