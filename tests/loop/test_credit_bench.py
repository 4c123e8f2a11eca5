"""What the credit bench plants is what it says, what it measures is exact where the truth is, and its page is whole."""

import asyncio
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
import pytest

import benchmarks.credit as bench
from benchmarks.credit import (
    ATTEMPTS,
    ECHO,
    KINDS,
    NUMBERS,
    PLACE,
    SIGN,
    STILL,
    TURNS,
    WAYS,
    Planted,
    Way,
    cases_block,
    ceiling,
    cosine,
    critic_run,
    helpful,
    mistake,
    noise_of,
    openings,
    planted,
    prepare,
    pulls,
    run_file,
    runs_of,
    sampled,
    signs_block,
    turn_advantage,
    weighed,
)
from strop.config.planning import plan_of
from strop.config.resolve import resolve
from strop.core.metrics import values
from strop.core.task import Task
from strop.core.trajectory import Group, Trajectory, Verdict
from strop.engine.scripted import ScriptedEngine
from strop.envs.guess import label
from strop.loop.assemble import Parts, assemble
from strop.loop.lesson import lesson
from strop.rollout.episode import NOTHING

PAGE = Path(__file__).parents[2] / "docs" / "credit.md"


def every() -> list[tuple[int, int, int, Random]]:
    """Secret, turn, first guess and stream, of all planted turns that there can be."""
    pairs = [(s, f) for s in range(1, NUMBERS + 1) for f in openings(s)]
    return [(s, t, f, Random(100 * s + f)) for s, f in pairs for t in TURNS]


def played(guesses: Sequence[int], secret: int) -> Trajectory:
    """The guesses as the world's own measures see them."""
    task = Task("", {"secret": secret, "numbers": NUMBERS})
    verdict = Verdict(float(secret in guesses))
    return Trajectory(task, (), NOTHING, "done", (), {"guesses": list(guesses)}, verdict=verdict)


def left(guesses: Sequence[int], secret: int) -> list[int]:
    """The numbers that the answers allow, by trying each."""
    return [n for n in range(1, NUMBERS + 1) if all(n != g and (n > g) == (secret > g) for g in guesses)]


# --- what is planted


def test_a_planted_mistake_is_the_one_excluded_guess_of_a_win() -> None:
    for secret, turn, first, stream in every():
        guesses = mistake(secret, turn, first, stream)
        assert guesses[0] == first and guesses.index(secret) == len(guesses) - 1 < ATTEMPTS
        given = played(guesses, secret)
        assert list(label(given.task, given)) == [float(k != turn) for k in range(len(guesses))]


def test_a_planted_helpful_turn_leaves_half_at_most_amid_guesses_that_leave_almost_all_and_lose() -> None:
    for secret, turn, first, stream in every():
        guesses = helpful(secret, turn, first, stream)
        assert guesses[0] == first and secret not in guesses and len(guesses) == ATTEMPTS
        for k in range(1, ATTEMPTS):
            before, after = len(left(guesses[:k], secret)), len(left(guesses[: k + 1], secret))
            if k != turn:
                assert after >= before - 1
            elif before > 1:
                assert after <= (before + 1) // 2
                assert after == min(len(left([*guesses[:k], n], secret)) for n in range(1, NUMBERS + 1) if n != secret)


# --- a player whose values are known exactly


def bisects(options: Sequence[int], secret: int, attempts: int) -> bool:
    """Whether the player that guesses the middle finds the secret."""
    for _ in range(attempts):
        guess = options[len(options) // 2]
        if guess == secret:
            return True
        options = [n for n in options if n != guess and (n > guess) == (secret > guess)]
    return False


def bisecting(parts: Parts, say: Callable[[list[int]], int]) -> Parts:
    """The parts with an engine that reads the answers so far and says a number of those that they allow."""
    tokenizer = parts.policy.tokenizer

    def script(prompt: np.ndarray, session: str, turn: int) -> np.ndarray:
        text = str(tokenizer.decode(prompt.tolist()))
        options = list(range(1, NUMBERS + 1))
        for guess, answer in re.findall(r"(\d+)<\|end\|><\|user\|>(higher|lower)", text):
            options = [n for n in options if n != int(guess) and (n > int(guess)) == (answer == "higher")]
        return parts.table.codec.reply(str(say(options)))

    return replace(parts, engine=ScriptedEngine(script, parts.table.codec.stop_ids))


@pytest.fixture(scope="module")
def parts() -> Parts:
    stage = {"kind": "reinforce", "steps": 1, "algorithm": "grpo"}
    run = {**run_file(bench.GAME, [stage]), "model": {"preset": "tiny(16, 1, 2)"}}
    return assemble(*plan_of(resolve(run, {})))


@pytest.fixture(scope="module")
def cases(parts: Parts) -> list[Planted]:
    """Planted groups among members that bisect, for every secret and turn."""
    middle = bisecting(parts, lambda options: options[len(options) // 2])
    plans = [(k, t, s) for k in KINDS for t in TURNS for s in range(1, NUMBERS + 1)]

    async def all_of() -> list[Planted]:
        return [await planted(middle, *plan, draw) for draw, plan in enumerate(plans)]

    before, bench.TRUTH = bench.TRUTH, 2
    try:
        return asyncio.run(all_of())
    finally:
        bench.TRUTH = before


def test_the_truth_of_a_planted_turn_is_that_of_enumeration(cases: list[Planted]) -> None:
    signs: set[tuple[str, float]] = set()
    for case in cases:
        own = case.group.trajectories[PLACE]
        guesses, secret = own.artefacts["guesses"], own.task.data["secret"]
        before, after = (bisects(left(guesses[:k], secret), secret, ATTEMPTS - k) for k in (case.turn, case.turn + 1))
        assert (case.truth, case.error) == (float(after) - float(before), 0.0)
        assert case.sure == (case.truth == SIGN[case.kind])
        assert own.score == (case.kind == "mistake")
        assert len(case.group.trajectories) == PLACE + 1
        signs.add((case.kind, case.truth))
    assert {("mistake", -1.0), ("mistake", 0.0), ("helpful", 0.0)} <= signs  # some are dropped, some are kept


def test_continuations_give_planted_mistakes_their_true_credit_and_group_credit_the_other_sign(
    parts: Parts, cases: list[Planted]
) -> None:
    sure = [case for case in cases if case.sure]
    middle = bisecting(parts, lambda options: options[len(options) // 2])

    async def credits(text: str) -> list[float]:
        way = Way(text)
        algorithm = prepare(way, middle, {})
        given = await lesson(middle, algorithm, algorithm.credit, [case.group for case in sure], {})
        return [turn_advantage(given.rows, case.group.id, case.turn) for case in sure]

    assert len(sure) >= 10
    assert asyncio.run(credits("monte_carlo(2)")) == [case.truth for case in sure]
    returned = [case.group.trajectories[PLACE].score or 0.0 for case in sure]
    assert asyncio.run(credits("reward_to_go(0.5)")) == [score - 0.5 for score in returned]
    assert all(a * case.truth <= 0 for a, case in zip(asyncio.run(credits("leave_one_out")), sure, strict=True))


# --- gradients


def test_gradients_of_groups_add_up_to_the_learners_gradient(parts: Parts) -> None:
    async def both() -> tuple[float, float, float]:
        algorithm = prepare(Way("reward_to_go(0.5)"), parts, {})
        groups = await sampled(parts, 6)
        rows = (await lesson(parts, algorithm, algorithm.credit, groups, {})).rows
        norm = values(parts.learner.step(rows).metrics)["gradient_norm"] or 0.0
        each = list(pulls(parts.policy, await weighed(parts, algorithm, groups)))
        return norm, float(np.linalg.norm(sum(each, np.zeros(1)))), float(np.linalg.norm(each[0]))

    norm, total, first = asyncio.run(both())
    assert total == pytest.approx(norm, rel=1e-4)
    assert first != pytest.approx(norm, rel=1e-2)  # negative control: one group is not the batch


def test_measuring_changes_no_weight(parts: Parts) -> None:
    before = [p.detach().clone() for p in parts.policy.model.parameters()]

    async def measured() -> None:
        groups = await sampled(parts, 4)
        for text in ("leave_one_out", "gae(critic=critic(separate))", "gae(0, critic=critic(shared))"):
            await weighed(parts, prepare(Way(text), parts, {}), groups)

    asyncio.run(measured())
    assert all(bool((a == b).all()) for a, b in zip(before, parts.policy.model.parameters(), strict=True))


def test_noise_is_the_spread_within_a_task() -> None:
    each = np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 3.0], [0.0, 3.0]])
    true = np.array([1.0, 3.0])
    noise, cos = noise_of(each, ["a", "a", "b", "b"], true)
    assert (noise, cos) == (0.0, pytest.approx(1.0))
    assert noise_of(each, ["a", "b", "a", "b"], true)[0] > 0.1  # negative control: the tasks are told apart
    jittered = each + np.array([[1.0, 0.0], [-1.0, 0.0], [0.0, 0.0], [0.0, 0.0]])
    assert noise_of(jittered, ["a", "a", "b", "b"], true)[0] == pytest.approx(
        2 * 2 / 40
    )  # 2 groups, variance 2, |g|^2 40
    assert cosine(np.array([1.0, 0.0]), np.array([-2.0, 0.0])) == -1.0


def test_the_ceiling_is_what_turn_and_interval_explain() -> None:
    def group(*each: Trajectory) -> Group:
        return Group("play-000000", each[0].task, each)

    low, high = [played([8, 1, 2, 3], 4), played([12, 16, 15, 13], 14)]
    told = [group(low, replace(high, verdict=Verdict(1.0)))] * 2
    # The first turn says nothing, the others everything: gaps of 1/2 at 2 of 8 states, scores of variance 1/4.
    assert ceiling(told) == pytest.approx(1 - (2 * 0.25 / 8) / 0.25)
    same = [group(low, replace(low, verdict=Verdict(1.0)))] * 2
    assert ceiling(same) == 0.0  # negative control: one history, two ends


# --- the runs and the page


def test_every_run_of_the_bench_is_a_run_file_that_stands(tmp_path: Path) -> None:
    for name, run in runs_of(tmp_path).items():
        plan, _ = plan_of(resolve(run, {}))
        critic = plan.stages[-1].algorithm.critic
        moves = name in ("shared", "given")  # the latter has no critic: its labels leave the policy alone
        assert (critic is None or critic.warmup < plan.stages[-1].updates) == moves, name
    plan, _ = plan_of(resolve(critic_run(tmp_path, f"shared, {STILL}", {}), {}))
    assert plan.stages[0].algorithm.critic is not None and plan.stages[0].algorithm.critic.kind == "shared"
    assert Way("zero", (ECHO,)).algorithm.terms[0].__class__.__name__ == "Observations"


def test_names_of_credits_are_unique_and_each_stands_in_the_page_once() -> None:
    page = PAGE.read_text()
    names = [way.key for way in WAYS]
    assert len(set(names)) == len(names)
    for name in names:
        assert page.count(f"| `{name}` |") == 1, name


def test_a_zero_counts_for_neither_sign() -> None:
    found = {
        "cases": [
            {"kind": k, "turn": 1, "truth": SIGN[k] / 2, "error": 0.1, "sure": True} for k in ("mistake", "helpful")
        ],
        "advantages": {"right": [-1.0, 1.0], "wrong": [1.0, -1.0], "nothing": [0.0, 0.0]},
        "noise": {name: [0.5, 0.25] for name in ("right", "wrong", "nothing")},
    }
    lines = signs_block(found).splitlines()
    right, wrong, nothing = ([cell.strip() for cell in line.split("|")] for line in lines[2:])
    assert right[2].startswith("1.00") and right[3].startswith("1.00") and right[5] == "0"
    assert wrong[2].startswith("0.00") and wrong[3].startswith("0.00") and wrong[5] == "0"
    assert nothing[2].startswith("0.00") and nothing[3].startswith("0.00") and nothing[5] == "2"
    assert "| mistake | 2 | 1 | 1 | 0 | -0.5 |" in cases_block(found)
