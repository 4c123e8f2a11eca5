"""The expected update of a whole game, over every trajectory that can happen, is the gradient of the exact objective.

Guess with 4 numbers and 2 attempts; a reply is at most 2 ids out of 6 (four numbers, the stop token, one junk id), so a
secret has 931 trajectories. Each is played through the real environment, codec and rollout, turned into rows, given credit
by `assign` and run through the learner's loss. The truth is computed apart: probabilities from the model's own forward,
success from the rules of the game, J by summation.
"""

import asyncio
import string
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import comb
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import AddedToken, Tokenizer, decoders, models
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from strop.codec.chat import ChatCodec
from strop.core.algorithm import Algorithm, Credit, GroupMean, SeqMeanTokenMean, TokenRatio
from strop.core.engine import Sampling
from strop.core.trajectory import Group, Row
from strop.credit.assign import assign
from strop.credit.outcome import Outcome, outcome
from strop.engine.scripted import ScriptedEngine
from strop.envs.guess import guess
from strop.learn import learner as learner_module
from strop.learn.annotate import Forward, Models
from strop.learn.learner import LocalLearner
from strop.learn.pack import Pack, count, pack
from strop.learn.schedule import Optimisation
from strop.model.attention import NAME
from strop.model.load import prepare
from strop.model.policy import Policy
from strop.model.tiny import END, SPECIAL
from strop.objective.objective import Moment
from strop.rollout.group import Table, play_group
from strop.rollout.limits import Limits
from strop.rollout.rows import group_rows
from tests.objective.batches import TABLE

NUMBERS, ATTEMPTS, TURN_TOKENS = 4, 2, 2
SMALL = ("1", "2", "3", "4", END, "?")
STOP = SMALL.index(END)
LIMITS = Limits(turns=ATTEMPTS, turn_tokens=TURN_TOKENS, context=64)

Script = tuple[tuple[int, ...], ...]


def make_policy() -> Policy:
    """A real model in float64 whose first six ids are all that may be sampled."""
    words = [*SMALL, *SPECIAL, *guess(NUMBERS, ATTEMPTS).pieces, "\n", *string.printable[:95], "<unk>"]
    scores = {word: -1000.0 if word in (*SPECIAL, "<unk>") else (-1.0 if len(word) > 1 else -10.0) for word in words}
    backend = Tokenizer(models.Unigram(list(scores.items()), unk_id=list(scores).index("<unk>")))
    backend.decoder = decoders.Fuse()
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token=END, clean_up_tokenization_spaces=False)
    tokenizer.chat_template = (
        "{% for message in messages %}{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
    )
    assert tokenizer.convert_tokens_to_ids(list(SMALL)) == list(range(6))
    config = GPT2Config(
        vocab_size=len(tokenizer), n_positions=64, n_embd=8, n_layer=1, n_head=2, initializer_range=0.5,
        bos_token_id=STOP, eos_token_id=STOP,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(6)  # success rates that differ by secret
        model = GPT2LMHeadModel(config)
    return replace(prepare(model.double(), tokenizer), vocabulary=len(SMALL))


def scripts(secret: int) -> list[Script]:
    """Every sequence of replies that can happen; a win ends the game."""
    others = [i for i in range(len(SMALL)) if i != STOP]
    replies: list[tuple[int, ...]] = [(STOP,), *((x, STOP) for x in others), *product(others, others)]
    win = (secret - 1, STOP)
    return [s for first in replies for s in ([(first,)] if first == win else [(first, second) for second in replies])]


@dataclass
class Game:
    """All that can happen with one secret, and the truth about it."""

    group: Group
    outcomes: list[Outcome]
    chances: np.ndarray
    success: float
    gradient: torch.Tensor


def flat(policy: Policy, grads: Sequence[torch.Tensor | None]) -> torch.Tensor:
    parameters = list(policy.model.parameters())
    return torch.cat(
        [(torch.zeros_like(p) if g is None else g).flatten() for p, g in zip(parameters, grads, strict=True)]
    )


def play_all(policy: Policy, codec: ChatCodec, secret: int) -> Group:
    """One group whose members are all trajectories of the secret."""
    world = guess(NUMBERS, ATTEMPTS)
    names = scripts(secret)

    def script(prompt: np.ndarray, session: str, turn: int) -> Sequence[int]:
        return names[int(session.rsplit("/", 1)[1])][turn]

    table = Table(world, codec, LIMITS, codec.append_only, 0)
    task = world.split("train")[secret - 1]
    engine = ScriptedEngine(script, codec.stop_ids)
    return asyncio.run(play_group(table, task, len(names), engine, Sampling(TURN_TOKENS), "train", secret))


def truth(policy: Policy, group: Group, secret: int) -> Game:
    """Chances, success rate and its gradient, without any of the code under test but the playing."""
    names = scripts(secret)
    ids, mask = [], []
    for script, trajectory in zip(names, group.trajectories, strict=True):
        assert trajectory.error is None
        row, sampled = [], []
        for reply, turn in zip(script, trajectory.turns, strict=True):
            assert tuple(turn.completion.tokens.tolist()) == reply
            row += [*turn.context.tolist(), *reply]
            sampled += [*[False] * len(turn.context), *[True] * len(reply)]
        ids.append(row)
        mask.append(sampled)
    width = max(map(len, ids))
    tokens = torch.tensor([[*row, *[0] * (width - len(row))] for row in ids])
    chosen = torch.tensor([[*row, *[False] * (width - len(row))] for row in mask])
    model: Any = policy.model
    model.set_attn_implementation("eager")
    logits = model(input_ids=tokens, use_cache=False).logits[:, :-1, : len(SMALL)]
    model.set_attn_implementation(NAME)
    logp = logits.log_softmax(-1).gather(2, tokens[:, 1:].clamp(max=len(SMALL) - 1)[..., None])[..., 0]
    chances = torch.where(chosen[:, 1:], logp, 0.0).sum(1).exp()
    won = torch.tensor([float((secret - 1, STOP) in script) for script in names], dtype=torch.float64)
    success = chances @ won
    gradient = flat(policy, torch.autograd.grad(success, list(policy.model.parameters()), allow_unused=True))
    assert [t.reward for t in group.trajectories] == won.tolist()
    outcomes = [outcome(t) for t in group.trajectories]
    return Game(group, outcomes, chances.detach().numpy(), success.item(), gradient)


@pytest.fixture(scope="module")
def world() -> tuple[Policy, list[Game]]:
    policy = make_policy()
    codec = ChatCodec(policy.tokenizer)
    assert codec.append_only
    games = [truth(policy, play_all(policy, codec, secret), secret) for secret in range(1, NUMBERS + 1)]
    return policy, games


Mend = Callable[[Row], Row]


def expected_credit(
    credit: Credit, member: Outcome, win: Outcome, loss: Outcome, success: float, size: int, index: int = 0
) -> np.ndarray:
    """Mean credit of a member over all companions: they matter by how many of them win, so one of each kind stands in."""
    others = size - 1
    total = np.zeros(len(member.turns))
    for wins in range(size):
        chance = comb(others, wins) * success**wins * (1 - success) ** (others - wins)
        [advantages] = assign(credit, [[member, *[win] * wins, *[loss] * (others - wins)]], {}).advantages
        taken = advantages[index]
        assert taken is not None
        # the fault "advantage of another member" (index 1) takes its number for all tokens of this one
        total += chance * (taken if index == 0 else taken[0])
    return total


def update(
    policy: Policy,
    games: list[Game],
    algorithm: Algorithm,
    size: int,
    mend: Mend = lambda row: row,
    company: Callable[[int], int] = lambda secret: secret,
    index: int = 0,
) -> torch.Tensor:
    """Expected ascent direction of the learner's loss over all groups of `size`, averaged over secrets.

    Args:
        mend: spoils rows, for planted faults.
        company: index of the game that a member's companions come from.
        index: whose credit a member is given, 0 for its own.
    """
    rows: list[Row] = []
    for number, game in enumerate(games):
        others = games[company(number)]
        win, loss = (next(o for o in others.outcomes if o.reward == r) for r in (1.0, 0.0))
        credits = [
            chance * expected_credit(algorithm.credit, member, win, loss, others.success, size, index)
            for member, chance in zip(game.outcomes, game.chances, strict=True)
        ]
        rows += group_rows(game.group, credits)
    learner = LocalLearner(policy, 1.0, 0)
    learner.begin(algorithm, Optimisation(token_budget=20_000), 1)
    if isinstance(algorithm.ratio, TokenRatio):
        rows = [replace(row, behaviour_logp=row.columns["logp"]) for row in learner.annotate(rows, ["logp"])]
    rows = [mend(row) for row in rows]
    totals = count(rows, False)
    packs = pack(rows, 20_000, None, policy.device)
    assert len(packs) > 1
    for micro in packs:
        learner._loss(micro, totals, Moment())
    found = flat(policy, [p.grad for p in policy.model.parameters()])
    learner._clear()
    # the loss is a mean over trajectories; here they are weighed by their chances instead
    return -found * totals.trajectories / len(games)


def error(found: torch.Tensor, games: list[Game], factors: Sequence[float] = (1.0,) * NUMBERS) -> float:
    """Relative distance from the exact gradient, each secret's part times its known factor."""
    exact = torch.stack([f * game.gradient for f, game in zip(factors, games, strict=True)]).mean(0)
    return ((found - exact).norm() / exact.norm()).item()


def deviation_factor(p: float, size: int) -> float:
    """What dividing by the population deviation does to the gradient: E[sigma] / (p (1 - p)) for binary returns."""
    shares = [(comb(size, k) * p**k * (1 - p) ** (size - k), k / size) for k in range(size + 1)]
    return sum(chance * (q * (1 - q)) ** 0.5 for chance, q in shares) / (p * (1 - p))


def test_every_trajectory_is_there_once(world: tuple[Policy, list[Game]]) -> None:
    _, games = world
    for game in games:
        assert len(game.chances) == 931
        assert game.chances.sum() == pytest.approx(1.0, abs=1e-12)
        assert game.chances[:-1].sum() < 1 - 1e-12
        assert 0.01 < game.success < 0.9
    assert len({round(game.success, 6) for game in games}) == NUMBERS
    assert {t.turns[0].completion.stop for t in games[0].group.trajectories} == {"stop", "length"}
    assert {t.end for t in games[0].group.trajectories} == {"done"}


@pytest.mark.parametrize(
    ("name", "size", "factor"),
    [
        ("reinforce", 1, 1.0),
        ("reinforce_constant", 1, 1.0),
        ("rloo", 2, 1.0),
        ("rloo", 4, 1.0),
        ("dr_grpo", 2, 0.5 / 8),
        ("dr_grpo", 4, 0.75 / 8),
    ],
)
def test_the_expected_update_is_the_exact_gradient(
    world: tuple[Policy, list[Game]], name: str, size: int, factor: float
) -> None:
    policy, games = world
    found = update(policy, games, TABLE[name], size)
    assert found.norm() > 0
    assert error(found, games, [factor] * NUMBERS) < 1e-5
    assert error(found, games, [factor * 1.001] * NUMBERS) > 1e-4


def test_the_deviation_weighs_each_secret_by_its_known_factor(world: tuple[Policy, list[Game]]) -> None:
    policy, games = world
    factors = [deviation_factor(game.success, 4) for game in games]
    assert max(factors) / min(factors) > 1.02
    assert error(update(policy, games, TABLE["group_reinforce"], 4), games, factors) < 1e-5
    mixed = update(policy, games, TABLE["group_reinforce"], 4, company=lambda secret: (secret + 1) % NUMBERS)
    assert error(mixed, games, factors) > 1e-2  # the fault: members of different secrets in one group


def test_a_share_of_the_length_is_not_the_gradient(world: tuple[Policy, list[Game]]) -> None:
    policy, games = world
    found = update(policy, games, replace(TABLE["reinforce"], aggregate=SeqMeanTokenMean()), 1)
    exact = torch.stack([game.gradient for game in games]).mean(0)
    best = (found @ exact) / (found @ found)  # whatever factor it is given, its direction is another
    assert error(found * best, games) > 1e-2


# --- planted faults: each must turn the exact test red


def without_stop(row: Row) -> Row:
    return replace(row, sampled=row.sampled & (row.tokens != STOP))


def mask_one_late(row: Row) -> Row:
    late = np.concatenate([[False], row.sampled[:-1]])
    return replace(row, sampled=late & (row.tokens < len(SMALL))).with_columns(
        advantage=np.where(late, row.columns["advantage"][row.sampled][0], 0).astype(np.float32)
    )


def template_ends_too(row: Row) -> Row:
    written = (row.tokens == STOP) & (np.arange(len(row)) > np.flatnonzero(row.sampled)[0])
    return replace(row, sampled=row.sampled | written).with_columns(
        advantage=np.full(len(row), row.columns["advantage"][row.sampled][0], np.float32)
    )


@pytest.mark.parametrize(
    ("mend", "name", "size"),
    [
        (without_stop, "reinforce", 1),
        (mask_one_late, "reinforce", 1),
        (template_ends_too, "reinforce", 1),
        (without_stop, "rloo", 2),
        (mask_one_late, "rloo", 2),
    ],
)
def test_a_wrong_mask_is_seen(world: tuple[Policy, list[Game]], mend: Mend, name: str, size: int) -> None:
    policy, games = world
    assert error(update(policy, games, TABLE[name], size, mend), games) > 1e-2


def test_hidden_states_of_the_neighbour_are_seen(
    world: tuple[Policy, list[Game]], monkeypatch: pytest.MonkeyPatch
) -> None:
    policy, games = world
    right = learner_module.forward

    def shifted(models: Models, micro: Pack, *rest: Any) -> Forward:
        return right(models, replace(micro, predictors=micro.predictors + 1), *rest)

    monkeypatch.setattr(learner_module, "forward", shifted)
    assert error(update(policy, games, TABLE["reinforce"], 1), games) > 1e-2


def test_the_advantage_of_another_member_is_seen(world: tuple[Policy, list[Game]]) -> None:
    policy, games = world
    assert error(update(policy, games, TABLE["rloo"], 2, index=1), games) > 1


def test_a_group_for_every_trajectory_is_seen(world: tuple[Policy, list[Game]]) -> None:
    policy, games = world
    assert not update(policy, games, TABLE["rloo"], 1).any()  # no member learns anything


def test_literal_pairs_give_the_same_credit_as_weighed_ones(world: tuple[Policy, list[Game]]) -> None:
    """The weighing above is right: all ordered pairs of one secret through `assign`, for some members."""
    _, games = world
    game = games[2]
    win, loss = (next(o for o in game.outcomes if o.reward == r) for r in (1.0, 0.0))
    for credit in (TABLE["rloo"].credit, GroupMean("population")):
        for member in (game.outcomes[0], game.outcomes[100], win):
            pairs = assign(credit, [[member, other] for other in game.outcomes], {}).advantages
            literal = sum(c * a[0] for c, [a, _] in zip(game.chances, pairs, strict=True) if a is not None)
            weighed = expected_credit(credit, member, win, loss, game.success, 2)
            assert weighed == pytest.approx(literal, abs=1e-12)
            assert weighed != pytest.approx(literal + 0.01, abs=1e-3)
