"""Parts as text: what is written is read back as it was, mistakes are named, and text is never run."""

import types
import typing
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strop.algorithms import ALGORITHMS
from strop.core import algorithm as parts
from strop.core.algorithm import (
    GAE,
    KL,
    Critic,
    MovingAverage,
    NoRatio,
    PPOClip,
    RewardToGo,
    Rounds,
    SequenceRatio,
    WeightClip,
)
from strop.core.errors import UsageError
from strop.core.notation import NAMES, read, written
from strop.core.source import Tiny

SOME = settings(max_examples=300, deadline=None, database=None)
KINDS = {cls: kind for kind, named in NAMES.items() for cls in named.values()}


def values_of(hint: Any) -> st.SearchStrategy[Any]:
    """Any value that a field of this annotation may hold."""
    if get_origin(hint) in (typing.Union, types.UnionType):
        return st.one_of([values_of(option) for option in get_args(hint)])
    if get_origin(hint) is Literal:
        return st.sampled_from(get_args(hint))
    if get_origin(hint) is tuple:
        return st.lists(values_of(float), max_size=4).map(tuple)
    if is_dataclass(hint):
        return parts_of(hint)  # type: ignore[arg-type]
    plain = {
        float: st.floats(allow_nan=False, allow_infinity=False),
        int: st.integers(-(10**12), 10**12),
        bool: st.booleans(),
        type(None): st.none(),
    }
    return plain[hint]


def parts_of(cls: type) -> st.SearchStrategy[Any]:
    return st.builds(cls, **{name: values_of(hint) for name, hint in get_type_hints(cls).items()})


# --- round trip


@SOME
@given(st.one_of([parts_of(cls) for cls in KINDS]))
def test_what_is_written_is_read_back_as_it_was(part: Any) -> None:
    text = written(part)
    assert read(KINDS[type(part)], text, "x") == part
    assert written(read(KINDS[type(part)], text, "x")) == text
    assert "\n" not in text


def test_a_field_that_got_lost_would_be_seen() -> None:
    """Negative control: of each part, a change of any one field changes the text."""
    for cls in KINDS:
        given = {f.name: f.default for f in fields(cls) if isinstance(f.default, int | float | bool)}
        base = cls(**{f.name: 3 for f in fields(cls) if f.name in ("coefficient", "length", "cache")})
        for name, value in given.items():
            assert written(replace(base, **{name: not value if isinstance(value, bool) else value + 1})) != written(
                base
            )


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_part_of_the_table_is_written_and_read(name: str) -> None:
    row = ALGORITHMS[name]
    told = {
        "credit": row.credit,
        "ratio": row.ratio,
        "clip": row.clip,
        "aggregate": row.aggregate,
        "rounds": row.rounds,
    }
    if row.correction is not None:
        told["correction"] = row.correction
    for kind, part in told.items():
        assert read(kind, written(part), kind) == part
    assert tuple(read("terms", written(term), "terms") for term in row.terms) == row.terms


def test_every_part_has_one_name_in_its_kind() -> None:
    kinds = {"credit": parts.Credit, "ratio": parts.Ratio, "clip": parts.Clip, "correction": parts.Correction}
    for kind, union in {**kinds, "aggregate": parts.Aggregate, "terms": parts.Term}.items():
        assert list(NAMES[kind].values()) == list(get_args(union))
    assert sum(map(len, NAMES.values())) == len(KINDS)


@pytest.mark.parametrize(
    ("kind", "text", "part"),
    [
        ("clip", "ppo", PPOClip()),
        ("clip", "ppo()", PPOClip()),
        ("clip", " ppo ( 0.2 , high = 0.28 ) ", PPOClip(0.2, 0.28)),
        ("clip", "ppo(0.2, 0.28)", PPOClip(0.2, 0.28)),
        ("clip", "ppo(dual=3)", PPOClip(dual=3.0)),
        ("clip", "weight(high=none)", WeightClip()),
        ("clip", "weight(-1, None)", WeightClip(-1.0)),
        ("ratio", "none", NoRatio()),
        ("ratio", "None", NoRatio()),
        ("ratio", "sequence(token)", SequenceRatio("token")),
        ("ratio", 'sequence("token")', SequenceRatio("token")),
        ("credit", "reward_to_go(0.5, 0.9, token)", RewardToGo(0.5, 0.9, "token")),
        ("credit", "reward_to_go(moving_average)", RewardToGo(MovingAverage())),
        ("credit", "reward_to_go(moving_average(0.9))", RewardToGo(MovingAverage(0.9))),
        ("credit", "gae(lam=0.95, critic=critic(stopgrad))", GAE(0.95, critic=Critic("stopgrad"))),
        ("terms", "kl(1e-3, k1, reward, target=6)", KL(1e-3, "k1", "reward", target=6.0)),
        ("terms", "kl(0.1, weighted=True)", KL(0.1, weighted=True)),
        ("rounds", "rounds([0.0, 0.5], cap=10)", Rounds((0.0, 0.5), cap=10)),
        ("preset", "tiny(32, 1, 2)", Tiny(32, 1, 2)),
    ],
)
def test_people_may_write_it_in_several_ways(kind: str, text: str, part: Any) -> None:
    assert read(kind, text, "x") == part


@pytest.mark.parametrize(
    ("part", "text"),
    [
        (PPOClip(), "ppo"),
        (PPOClip(0.2, 0.28), "ppo(high=0.28)"),
        (PPOClip(0.1, 0.28, 3.0), "ppo(0.1, 0.28, 3.0)"),
        (NoRatio(), "none"),
        (GAE(critic=Critic("shared", warmup=20)), "gae(critic=critic(shared, warmup=20))"),
        (RewardToGo(MovingAverage(0.9)), "reward_to_go(moving_average(0.9))"),
        (Rounds((0.0, 0.5)), "rounds([0.0, 0.5])"),
        (KL(0.1, "k2", weighted=True), "kl(0.1, k2, weighted=True)"),
    ],
)
def test_a_part_is_written_in_one_way_with_its_defaults_left_out(part: Any, text: str) -> None:
    assert written(part) == text


# --- mistakes


@pytest.mark.parametrize(
    ("kind", "text", "told"),
    [
        # names
        ("clip", "poo(0.2)", "x 'poo' is unknown; did you mean ppo?"),
        ("clip", "wieght", "did you mean weight?"),
        ("credit", "gea", "did you mean gae?"),
        ("credit", "ppo", "x 'ppo' is unknown"),  # a part, but no credit
        ("credit", "zzz", "known: reward_to_go, leave_one_out, turn_leave_one_out, group_mean"),
        ("credit", "parts.GAE()", "x 'parts.GAE' is unknown"),
        ("credit", "gae(critic=critc(shared))", "did you mean critic?"),
        ("terms", "observation(0.3)", "did you mean observations?"),
        # options
        ("clip", "ppo(hihg=0.3)", "'hihg' is no free option of ppo; options: low, high, dual"),
        ("clip", "ppo(0.2, low=0.3)", "'low' is no free option of ppo"),
        ("clip", "ppo(1, 2, 3, 4)", "ppo takes at most 3 values (low, high, dual)"),
        ("clip", "none(1)", "none takes at most 0 values (none)"),
        ("clip", "ppo(**{'low': 1})", "no free option of ppo"),
        ("terms", "kl", "kl needs coefficient"),
        ("terms", "kl(estimator=k2)", "kl needs coefficient"),
        ("terms", "overlong(100)", "overlong needs cache"),
        # values
        ("clip", "ppo(high=nan)", "ppo.high is nan; it must be a number"),
        ("clip", "ppo(high=1e999)", "it must be a number"),
        ("clip", "ppo(-1e999)", "it must be a number"),
        ("clip", "ppo('a')", "ppo.low is 'a'; it must be a number"),
        ("clip", "ppo(True)", "ppo.low is True; it must be a number"),
        ("clip", "ppo(none)", "ppo.low is none; it must be a number"),
        ("clip", "ppo(dual=x)", "ppo.dual is x; it must be a number or none"),
        ("clip", "ppo(1j)", "ppo.low is 1j; it must be a number"),
        ("clip", "ppo(1 + 2)", "ppo.low is 1 + 2; it must be a number"),
        ("clip", "ppo([0.2])", "ppo.low is [0.2]; it must be a number"),
        ("clip", "ppo({[]: 1})", "it must be a number"),
        ("clip", "ppo(f(1))", "ppo.low is f(1); it must be a number"),
        ("clip", f"ppo(1{'0' * 400})", "it must be a number"),
        ("credit", "monte_carlo(2.5)", "monte_carlo.count is 2.5; it must be a whole number"),
        ("credit", "monte_carlo(True)", "it must be a whole number"),
        ("credit", "gae(critic=0.5)", "gae.critic is 0.5; it must be critic"),
        ("credit", "gae(critic=critic(kind=own))", "critic.kind is own; it must be separate, stopgrad, shared"),
        ("credit", "reward_to_go(ema)", "it must be a number or moving_average"),
        ("terms", "kl(0.1, k5)", "kl.estimator is k5; it must be k1, k2, k3, exact"),
        ("terms", "kl(0.1, weighted=1)", "kl.weighted is 1; it must be True or False"),
        ("rounds", "rounds(0.5)", "rounds.thresholds is 0.5; it must be a list of numbers"),
        ("rounds", "rounds([0.5, x])", "rounds.thresholds is x; it must be a number"),
        # no text of a part at all
        ("clip", "", 'x = "" cannot be read; write it as name(value, option=value)'),
        ("clip", "ppo(0.2", "cannot be read"),
        ("clip", "ppo 0.2", "cannot be read"),
        ("clip", "ppo(0.2); none", "cannot be read"),
        ("clip", "ppo(0.2)\nnone", 'x = "ppo(0.2) none" cannot be read'),
        ("clip", "low = 0.2", "cannot be read"),
        ("clip", "ppo\0", "cannot be read"),
        ("clip", "\ud800", "cannot be read"),
        ("clip", "9" * 5000, "cannot be read"),
        ("clip", "-" * 100_000 + "1", "cannot be read"),
        ("clip", "ppo(" * 1000 + ")" * 1000, "cannot be read"),
        ("clip", "1+" * 20_000 + "1", "cannot be read"),
    ],
    ids=lambda value: str(value)[:40].encode("unicode_escape").decode(),
)
def test_a_mistake_is_named_with_what_is_allowed(kind: str, text: str, told: str) -> None:
    with pytest.raises(UsageError) as found:
        read(kind, text, "x")
    assert told in str(found.value)
    assert "\n" not in str(found.value)


WORDS = [
    "ppo",
    "kl",
    "gae",
    "critic",
    "k1",
    "high",
    "none",
    "0.2",
    "-",
    "1e999",
    "(",
    ")",
    "[",
    "]",
    "{",
    "}",
    ",",
    "=",
]
WORDS += [
    "*",
    "**",
    ":",
    ".",
    "'",
    "#",
    "\\",
    "\n",
    "\0",
    "lambda",
    "if",
    "else",
    "for",
    "in",
    "await",
    "f'{1}'",
    "b'a'",
]


@SOME
@given(st.sampled_from(list(NAMES)), st.one_of(st.text(), st.lists(st.sampled_from(WORDS)).map("".join)))
@pytest.mark.filterwarnings("ignore::SyntaxWarning")
def test_any_text_gives_a_part_of_its_kind_or_a_usage_error(kind: str, text: str) -> None:
    try:
        found = read(kind, text, "x")
    except UsageError:
        return
    assert type(found) in NAMES[kind].values()
    assert read(kind, written(found), "x") == found


@pytest.mark.parametrize(
    "text",
    [
        "PATH.touch()",
        "open('{path}', 'w')",
        "__import__('pathlib').Path('{path}').touch()",
        "ppo(__import__('pathlib').Path('{path}').touch())",
        "ppo(low=[open('{path}', 'w')])",
        'ppo(f\'{{open("{path}", "w")}}\')',
        "ppo((lambda: open('{path}', 'w'))())",
        "(ppo := open('{path}', 'w'))",
        "critic(open('{path}', 'w'))",
    ],
)
def test_text_is_never_run(text: str, tmp_path: Path) -> None:
    path = tmp_path / "touched"
    for kind in ("clip", "inner"):
        with pytest.raises(UsageError):
            read(kind, text.format(path=path), "x")
    assert not path.exists()


def test_text_that_is_run_would_be_seen(tmp_path: Path) -> None:
    """Negative control of the above: the same text does make a file when Python runs it."""
    path = tmp_path / "touched"
    run = compile(f"open('{path}', 'w').close()", "text", "exec")
    types.FunctionType(run, {})()
    assert path.exists()
