"""Craft: the rules by hand, the shortest plans against a search that knows no short cuts, and replies of every kind."""

import asyncio
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from fractions import Fraction
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from strop.codec.chat import ChatCodec
from strop.config.planning import plan_of
from strop.config.resolve import read_file, resolve
from strop.core.errors import UsageError
from strop.core.message import Message
from strop.core.seeds import python_random
from strop.core.task import Step, Task
from strop.core.trajectory import Completion, Trajectory, Turn
from strop.core.world import Player, World
from strop.envs import craft as module
from strop.envs.catalogue import world
from strop.envs.craft import (
    GOALS,
    HELD_OUT,
    NAMES,
    REFUSAL,
    Craft,
    craft,
    draw_tasks,
    measures,
    on_the_way,
    opening,
    player,
    read_action,
    shortest,
    verify,
)
from strop.envs.craft import PLACE as RICHEST
from strop.model.tiny import tiny

Units = Mapping[str, int]
NOTHING = np.zeros(0, np.int32)

BOOK: dict[str, tuple[str, int, dict[str, int], str]] = {  # verb, units made, units used, tool: written down once more
    "wood": ("collect", 1, {}, ""),
    "planks": ("craft", 4, {"wood": 1}, ""),
    "stick": ("craft", 2, {"planks": 1}, ""),
    "table": ("craft", 1, {"planks": 2}, ""),
    "ladder": ("craft", 1, {"stick": 3}, ""),
    "chest": ("craft", 1, {"planks": 3}, "table"),
    "wooden pickaxe": ("craft", 1, {"planks": 1, "stick": 1}, "table"),
    "stone": ("collect", 1, {}, "wooden pickaxe"),
    "stone pickaxe": ("craft", 1, {"stone": 1, "stick": 1}, "table"),
    "sword": ("craft", 1, {"stone": 1, "stick": 1}, "table"),
    "furnace": ("craft", 1, {"stone": 2}, "table"),
    "coal": ("collect", 1, {}, "stone pickaxe"),
    "iron": ("collect", 1, {}, "stone pickaxe"),
    "torch": ("craft", 1, {"coal": 1, "stick": 1}, ""),
    "ingot": ("craft", 1, {"iron": 1, "coal": 1}, "furnace"),
    "iron pickaxe": ("craft", 1, {"ingot": 1, "stick": 1}, "table"),
}


def task_of(goal: str, inventory: Units, place: Units, turns: int = 10) -> Task:
    plan = shortest(goal, inventory, place)
    data = {"goal": goal, "inventory": dict(inventory), "place": dict(place), "turns": turns}
    return Task("t", {**data, "shortest": 0 if plan is None else len(plan)})


def play(env: Craft, replies: Sequence[str]) -> list[Step]:
    async def steps() -> list[Step]:
        return [await env.start(), *[await env.step(Message("assistant", reply)) for reply in replies]]

    return asyncio.run(steps())


def episode(env: Craft, agent: Player) -> tuple[list[Message], list[Step]]:
    """A whole game of a scripted agent: the transcript and the steps."""

    async def go() -> tuple[list[Message], list[Step]]:
        steps = [await env.start()]
        messages = list(steps[0].messages)
        while not steps[-1].done:
            messages.append(Message("assistant", agent(messages)))
            steps.append(await env.step(messages[-1]))
            messages += steps[-1].messages
        return messages, steps

    return asyncio.run(go())


def played(env: Craft, steps: Sequence[Step]) -> Trajectory:
    """The trajectory of a game, judged."""
    done = Completion(NOTHING, np.zeros(0, np.float32), NOTHING, "stop")
    turns = tuple(Turn(NOTHING, done, Message("assistant", ""), dict(step.rewards)) for step in steps[1:])
    trajectory = Trajectory(env.task, turns, NOTHING, "done", (), env.artefacts())
    return trajectory.judged(verify(env.task, trajectory))


def won(env: Craft) -> bool:
    return verify(env.task, Trajectory(env.task, (), NOTHING, "done", (), env.artefacts())).score == 1.0


# --- the rules, by hand


def test_a_whole_game_by_hand() -> None:
    env = Craft(task_of("wooden pickaxe", {}, {"wood": 1, "stone": 2}, turns=9))
    replies = (
        ("craft planks", "need wood 1"),
        ("collect wood", "have wood 1"),
        ("collect wood", "no wood"),
        ("craft planks", "have planks 4"),
        ("craft table", "have table 1"),
        ("craft stick", "have stick 2"),
        ("collect stone", "need wooden pickaxe 1"),
    )
    steps = play(env, [reply for reply, _ in replies])
    assert steps[0].messages == (
        Message(
            "user",
            'Reply with "collect" or "craft" and one item. Goal: wooden pickaxe from planks 1 stick 1 with table. '
            "You have nothing. Here: wood 1 stone 2. Turns: 9",
        ),
    )
    assert [m.content for step in steps[1:] for m in step.messages] == [answer for _, answer in replies]
    assert env.artefacts()["inventory"] == {"planks": 1, "stick": 2, "table": 1}
    assert not won(env)
    assert asyncio.run(env.step(Message("assistant", "craft wooden pickaxe"))) == Step(done=True)
    assert env.artefacts() == {
        "inventory": {"stick": 1, "table": 1, "wooden pickaxe": 1},
        "place": {"stone": 2},
        "actions": [*(reply for reply, _ in replies), "craft wooden pickaxe"],
        "possible": [False, True, False, True, True, True, False, True],
    }
    assert won(env)


@pytest.mark.parametrize(
    ("reply", "answer"),
    [
        ("collect planks", "no planks"),  # nobody finds planks
        ("craft wood", "no recipe"),
        ("craft chest", "need table 1"),
        ("craft ladder", "need stick 3"),
        ("craft ingot", "need furnace 1"),
        ("craft iron pickaxe", "need table 1"),
        ("collect iron", "need stone pickaxe 1"),
        (" craft planks\n", "need wood 1"),
        ("collect", REFUSAL), ("craft", REFUSAL), ("stick", REFUSAL), ("craft  stick", REFUSAL), ("", REFUSAL),
        ("Craft stick", REFUSAL), ("craft stick.", REFUSAL), ("craft stick craft stick", REFUSAL), ("<unk>", REFUSAL),
        ("collect wood\ncollect wood", REFUSAL), ("craft\tstick", REFUSAL), ("craft stic\u212a", REFUSAL),
    ],
)  # fmt: skip
def test_what_cannot_be_done_is_answered_costs_the_turn_and_changes_nothing(reply: str, answer: str) -> None:
    env = Craft(task_of("stick", {"planks": 1, "stick": 2}, {}, turns=3))
    before = env.state
    told = Step((Message("user", answer),))
    assert play(env, [reply] * 3)[1:] == [told, told, Step(done=True)]
    assert env.state == before
    assert env.artefacts()["possible"] == [False] * 3


@given(st.lists(st.one_of(st.text(), st.sampled_from(["craft stick", "collect wood"])), min_size=3, max_size=3))
@example(["collect " + "wood" * 10_000, "\ud800", "\x00"])
def test_any_text_is_answered_and_costs_a_turn(replies: list[str]) -> None:
    env = Craft(task_of("torch", {"planks": 1}, {"wood": 1}, turns=3))
    steps = play(env, replies)
    for reply, step, possible in zip(replies, steps[1:3], env.artefacts()["possible"], strict=False):
        read = reply.strip() in (f"{verb} {item}" for verb in ("collect", "craft") for item in NAMES)
        assert read == (read_action(reply) is not None)
        assert (step.messages == (Message("user", REFUSAL),)) == (not read)
        assert read or not possible
    assert [step.done for step in steps] == [False, False, False, True]


def follows(state: tuple[dict[str, int], dict[str, int]], item: str, book: Mapping[str, Any] = BOOK) -> Any:
    """The state (inventory, place) after obtaining an item by the book above; None if it cannot be done."""
    verb, made, used, tool = book[item]
    inventory, place = dict(state[0]), dict(state[1])
    if tool and inventory.get(tool, 0) == 0:
        return None
    if verb == "collect":
        place[item] = place.get(item, 0) - 1
    for name, units in used.items():
        inventory[name] = inventory.get(name, 0) - units
    if min([0, *inventory.values(), *place.values()]) < 0:
        return None
    inventory[item] = inventory.get(item, 0) + made
    return inventory, place


@pytest.mark.parametrize("seed", range(20))
def test_random_play_keeps_to_the_book_and_what_is_gone_is_gone(seed: int) -> None:
    stream = Random(seed)
    task = stream.choice(craft(tasks=32).tasks["train"])
    task = Task("t", {**task.data, "turns": 60, "goal": "iron pickaxe"})
    env = Craft(task)
    _, steps = episode(env, player(task, stream, skill=0.0))
    state = (dict(task.data["inventory"]), dict(task.data["place"]))
    artefacts = env.artefacts()
    for text, possible in zip(artefacts["actions"], artefacts["possible"], strict=True):
        verb, item = text.split(" ", 1)
        after = follows(state, item) if BOOK[item][0] == verb else None
        assert possible == (after is not None)
        state = after or state
    assert artefacts["inventory"] == {name: n for name, n in state[0].items() if n}
    assert artefacts["place"] == {name: n for name, n in state[1].items() if n}
    collected = Counter(t for t, p in zip(artefacts["actions"], artefacts["possible"], strict=True) if p)
    for name in RICHEST:
        assert collected[f"collect {name}"] + artefacts["place"].get(name, 0) == task.data["place"].get(name, 0)
    assert len(steps) <= 61


# --- the shortest plan


def brute_force(goal: str, inventory: Units, place: Units, book: Mapping[str, Any] = BOOK) -> int | None:
    """Length of the shortest plan by breadth-first search over all states and all actions."""
    if inventory.get(goal):
        return 0

    def frozen(state: Any) -> Any:
        return frozenset(state[0].items()), frozenset(state[1].items())

    start = (dict.fromkeys(book, 0) | dict(inventory), dict.fromkeys(RICHEST, 0) | dict(place))
    edge, seen, length = [start], {frozen(start)}, 0
    while edge:
        length += 1
        reached: list[Any] = []
        for state in edge:
            for item in book:
                after = follows(state, item, book)
                if after is None or frozen(after) in seen:
                    continue
                if item == goal:
                    return length
                seen.add(frozen(after))
                reached.append(after)
        edge = reached
    return None


def cases(count: int, seed: int) -> list[tuple[str, Units, Units]]:
    """Small problems, many of them unsolvable: up to three kinds of things in hand, up to two units in the place."""
    stream = Random(seed)
    made = [name for name, (_, _, used, _) in BOOK.items() if used]
    found: list[tuple[str, Units, Units]] = []
    while len(found) < count:
        goal = stream.choice(NAMES)
        hand = {n: stream.randint(1, 3) for n in stream.sample([n for n in made if n != goal], stream.randint(0, 3))}
        place = {n: stream.randint(0, 2) for n in RICHEST}
        found.append((goal, hand, place))
    return found


def test_the_search_finds_what_a_search_without_short_cuts_finds() -> None:
    differ, lengths = [], Counter[int | None]()
    for goal, hand, place in cases(120, seed=1):
        plan = shortest(goal, hand, place)
        length = None if plan is None else len(plan)
        lengths[length] += 1
        if length != brute_force(goal, hand, place):
            differ.append((goal, hand, place, length))
    assert differ == []
    assert lengths[None] >= 20 and len(lengths) >= 8  # the cases are of all kinds


def test_the_comparison_sees_one_changed_recipe() -> None:
    """Negative control: with three planks from a wood, not four, some lengths are others."""
    other = {**BOOK, "planks": ("craft", 3, {"wood": 1}, "")}
    plans = [(shortest(*case), brute_force(*case, other)) for case in cases(120, seed=1)]
    assert sum((None if plan is None else len(plan)) != length for plan, length in plans) >= 3


@pytest.mark.parametrize(
    ("goal", "length"),
    [("planks", 2), ("stick", 3), ("table", 3), ("ladder", 5), ("wooden pickaxe", 5), ("chest", 6), ("stone", 6),
     ("stone pickaxe", 7), ("furnace", 8), ("coal", 8), ("torch", 12), ("ingot", 13), ("iron pickaxe", 17)],
)  # fmt: skip
def test_lengths_from_nothing_in_the_richest_place(goal: str, length: int) -> None:
    """By hand: for an iron pickaxe wood x2, planks x2, stick x2, table, wooden pickaxe, stone x3, stone pickaxe, furnace,
    coal, iron, ingot and itself."""
    assert len(shortest(goal, {}, RICHEST) or ()) == length


def test_the_iron_pickaxe_needs_every_wood_and_stone_of_the_richest_place() -> None:
    assert shortest("iron pickaxe", {}, {**RICHEST, "wood": 1}) is None
    assert shortest("iron pickaxe", {}, {**RICHEST, "stone": 2}) is None
    assert shortest("iron pickaxe", {}, {**RICHEST, "coal": 1, "iron": 1}) is not None


def test_sticks_from_the_last_planks_make_the_goal_unreachable() -> None:
    task = task_of("wooden pickaxe", {}, {"wood": 1})
    assert len(shortest("wooden pickaxe", {}, {"wood": 1}) or ()) == 5
    env = Craft(task)
    steps = play(env, ["collect wood", "craft planks", "craft stick", "craft stick"])
    assert [step.messages[0].content for step in steps[-2:]] == ["have stick 2", "have stick 4"]
    assert shortest("wooden pickaxe", env.artefacts()["inventory"], env.artefacts()["place"]) is None
    assert measures(task, played(env, steps))["dead_ends"] == (1.0, 1)
    env = Craft(task)
    steps = play(env, ["collect wood", "craft planks", "craft stick"])
    assert measures(task, played(env, steps))["dead_ends"] == (0.0, 1)  # one time less, and it can still be won


@pytest.mark.parametrize(("opened", "wins"), [(1, True), (2, False)])
def test_the_player_goes_on_from_where_the_talk_stands_and_wins_if_it_can(opened: int, wins: bool) -> None:
    task = task_of("wooden pickaxe", {}, {"wood": 1}, turns=12)
    first = ["collect wood", "craft planks", *["craft stick"] * opened]
    best = player(task, Random(0), 1.0)
    env = Craft(task)
    episode(env, lambda messages: first[len(messages) // 2] if len(messages) // 2 < len(first) else best(messages))
    assert won(env) == wins
    assert len(env.actions) == (5 if wins else 12)


def test_items_stand_behind_what_they_need() -> None:
    """`demand` goes through the items once, from the last to the first, so this order is what makes it right."""
    for k, (name, recipe) in enumerate(module.ITEMS.items()):
        assert {other for other, _ in recipe.uses} | ({recipe.at} if recipe.at else set()) <= set(NAMES[:k]), name
    assert {n: (r.makes, dict(r.uses), r.at or "") for n, r in module.ITEMS.items()} == {
        name: entry[1:] for name, entry in BOOK.items()
    }


# --- the tasks


@pytest.mark.parametrize("options", [{}, {"depth": 4, "tasks": 100, "seed": 3}, {"depth": 12, "slack": 0, "seed": 1}])
def test_every_task_is_won_by_its_plan_and_by_none_that_is_shorter(options: dict[str, Any]) -> None:
    made = craft(**options)
    depth, slack = options.get("depth", 8), options.get("slack", 2)
    for task in (*made.tasks["train"], *made.tasks["eval"]):
        env = made.env(task, 0)
        assert isinstance(env, Craft)
        plan = task.data["plan"]
        steps = play(env, plan)
        assert [step.done for step in steps] == [False] * len(plan) + [True]
        assert won(env) and all(env.artefacts()["possible"])
        assert len(plan) == task.data["shortest"] and task.data["turns"] == len(plan) + slack
        assert task.tags[0] == f"depth-{len(plan)}" and 2 <= len(plan) <= depth
    assert made.best_possible == 1.0 and made.turns == depth + slack


def test_brute_force_agrees_with_the_lengths_of_tasks_that_are_short() -> None:
    """Deeper ones follow from the comparison above; here the tasks themselves are asked."""
    short = [task for task in craft(tasks=64).tasks["train"] if task.data["shortest"] <= 4]
    for task in short:
        assert brute_force(task.data["goal"], task.data["inventory"], task.data["place"]) == task.data["shortest"]
    assert len(short) > 20


def test_held_out_goals_are_in_no_training_task_but_made_on_the_way() -> None:
    made = craft(tasks=256)
    goals = {task.data["goal"] for task in made.tasks["train"]}
    assert goals == set(GOALS) and not goals & set(HELD_OUT)
    on_the_way_there = Counter(action.split(" ", 1)[1] for t in made.tasks["train"] for action in t.data["plan"][:-1])
    assert [name for name in HELD_OUT if on_the_way_there[name] < 5] == []
    assert on_the_way_there["ladder"] == 0  # negative control: a goal that leads nowhere
    held_out = [task for task in made.tasks["eval"] if task.data["goal"] in HELD_OUT]
    assert all(("held-out" in task.tags) == (task in held_out) for task in made.tasks["eval"])
    assert len(held_out) == 28 and len(made.tasks["eval"]) == 56


def problem(task: Task) -> tuple[Any, ...]:
    return (task.data["goal"], *(tuple(sorted(task.data[key].items())) for key in ("inventory", "place")))


def test_no_task_is_drawn_twice_and_none_of_eval_is_trained_on() -> None:
    made = craft(tasks=1024)
    everything = [*made.tasks["train"], *made.tasks["eval"]]
    assert len({problem(task) for task in everything}) == len({task.id for task in everything}) == 1024 + 56
    lengths = Counter(task.data["shortest"] for task in made.tasks["train"])
    assert set(lengths) == set(range(2, 9)) and max(lengths.values()) - min(lengths.values()) <= 1


def test_tasks_depend_on_the_seed_and_eval_on_little_else() -> None:
    assert craft(tasks=50).tasks == craft(tasks=50).tasks
    assert craft(tasks=50).tasks["eval"] == craft(tasks=7, skill=0.9, achievements=1.0).tasks["eval"]
    assert craft(tasks=50).tasks["train"][:7] == craft(tasks=7).tasks["train"]
    ids = [{task.id for task in craft(tasks=50, seed=seed).tasks["train"]} for seed in (0, 1)]
    assert len(ids[0] & ids[1]) < 25


def test_a_game_is_the_same_each_time() -> None:
    made = craft(tasks=20, achievements=0.5)
    for task in made.tasks["train"]:
        first, second = (
            episode(made.env(task, seed), player(task, python_random((7,)), 0.5))  # type: ignore[arg-type]
            for seed in (0, 1)
        )
        assert first == second


def test_tasks_of_every_length_are_found_for_both_kinds_of_goals() -> None:
    for seed in range(3):
        made = craft(depth=12, tasks=11, seed=seed)
        assert [task.data["shortest"] for task in made.tasks["train"]] == list(range(2, 13))
        assert Counter(task.data["shortest"] for task in made.tasks["eval"]) == dict.fromkeys(range(2, 13), 8)


def test_more_tasks_than_there_are_is_told() -> None:
    with pytest.raises(UsageError, match=r"after \d+ tasks, .* shortest plan of 2 actions; ask for fewer tasks"):
        draw_tasks(Random(0), ["wooden pickaxe"], [2] * 500, 0, set())  # one hand, 108 places


# --- rewards


def test_an_achievement_is_paid_once_to_the_turn_that_earned_it_and_success_never() -> None:
    env = Craft(task_of("stone", {}, {"wood": 2, "stone": 1}, turns=10), weight=0.25)
    replies = (
        ("collect wood", 0.25),
        ("collect wood", 0.0),  # not the first
        ("craft planks", 0.25),
        ("craft planks", 0.0),
        ("craft stick", 0.25),
        ("craft table", 0.25),
        ("craft chest", 0.0),  # not on the way
        ("craft stick", 0.0),
        ("craft wooden pickaxe", 0.25),
        ("collect stone", 0.0),  # the goal: the verifier's
    )
    steps = play(env, [reply for reply, _ in replies])
    assert [sum(step.rewards.values()) for step in steps[1:]] == [reward for _, reward in replies]
    assert {name for step in steps for name in step.rewards} == {"achievement"}
    game = played(env, steps)
    assert (game.score, game.reward) == (1.0, 1.0 + 5 * 0.25)
    assert game.verdict is not None and game.verdict.aux == {}


def test_what_is_held_at_the_start_and_what_leads_to_it_is_no_achievement() -> None:
    assert on_the_way("stone", {}) == {"wooden pickaxe", "table", "planks", "stick", "wood"}
    assert on_the_way("stone", {"wooden pickaxe": 1}) == frozenset()
    assert on_the_way("torch", {"stone pickaxe": 1}) == {"coal", "stick", "planks", "wood"}
    assert on_the_way("wood", {}) == frozenset()
    env = Craft(task_of("table", {"planks": 1}, {"wood": 1}), weight=1.0)
    steps = play(env, ["collect wood", "craft planks", "craft table"])
    assert [dict(step.rewards) for step in steps[1:]] == [{}, {}, {}]


@pytest.mark.parametrize("weight", [0.0, 0.5])
def test_rewards_of_random_games_are_achievements_or_nothing(weight: float) -> None:
    made = craft(tasks=40, achievements=weight, skill=0.6)
    paid = 0.0
    for k, task in enumerate(made.tasks["train"]):
        env = made.env(task, 0)
        assert isinstance(env, Craft) and made.demonstrate is not None
        _, steps = episode(env, made.demonstrate(task, python_random((k,))))
        total = sum(sum(step.rewards.values()) for step in steps)
        obtained = {a.split(" ", 1)[1] for a, p in zip(env.actions, env.possible, strict=True) if a and p}
        way = on_the_way(task.data["goal"], task.data["inventory"])
        assert total == weight * len(obtained & way)
        assert played(env, steps).reward == total + won(env)
        paid += total
    assert (paid > 0) == (weight > 0)


# --- the scripted player


def success(made: World, skill: float, rounds: int = 2) -> float:
    wins = 0
    for k, task in enumerate(made.tasks["train"] * rounds):
        env = Craft(task)
        episode(env, player(task, python_random((k,)), skill))
        wins += won(env)
    return wins / (len(made.tasks["train"]) * rounds)


def test_the_player_of_the_recipe_stands_between_chance_and_perfect() -> None:
    made = craft(tasks=210)
    chance, middle = success(made, 0.0), success(made, 0.4)
    assert chance < 0.2 and 0.3 < middle < 0.55
    assert success(made, 1.0, 1) == 1.0


def test_a_player_of_full_skill_wins_every_task_in_the_fewest_turns_also_without_slack() -> None:
    made = craft(tasks=210, slack=0, skill=1.0, depth=12)
    assert made.demonstrate is not None
    for task in (*made.tasks["train"], *made.tasks["eval"]):
        env = Craft(task)
        messages, _ = episode(env, made.demonstrate(task, Random(0)))
        assert [m.content for m in messages if m.role == "assistant"] == task.data["plan"] and won(env)


def exact_success(task: Task, skill: Fraction) -> Fraction:
    """The player's success by recursion over (state, turns left), by the book above."""
    goal = task.data["goal"]

    @cache
    def wins(inventory: Any, place: Any, left: int) -> Fraction:
        if dict(inventory).get(goal):
            return Fraction(1)
        if left == 0:
            return Fraction(0)
        state = (dict(inventory), dict(place))
        after = {item: follows(state, item) for item in BOOK}
        can = [item for item, reached in after.items() if reached is not None]
        chance = {item: (1 - skill) / len(BOOK) / (2 if can else 1) for item in BOOK}
        for item in can:
            chance[item] += (1 - skill) / 2 / len(can)
        plan = shortest(goal, *state)
        chance = {item: p + (skill if plan and item == plan[0] else 0) for item, p in chance.items()}
        if not plan:
            chance = {item: p / (1 - skill) for item, p in chance.items()}
        total = Fraction(0)
        for item, p in chance.items():
            reached = after[item] or state
            total += p * wins(*(tuple(sorted(units.items())) for units in reached), left - 1)
        return total

    return wins(*(tuple(sorted(task.data[key].items())) for key in ("inventory", "place")), task.data["turns"])


def simulated(task: Task, skill: float, games: int) -> float:
    wins = 0
    for game in range(games):
        env = Craft(task)
        episode(env, player(task, python_random((game,)), skill))
        wins += won(env)
    return wins / games


def test_the_played_player_wins_as_often_as_the_exact_one_and_not_as_another() -> None:
    task = task_of("wooden pickaxe", {}, {"wood": 1}, turns=7)
    games = 1500
    exact, other = float(exact_success(task, Fraction(2, 5))), float(exact_success(task, Fraction(1, 2)))
    found, error = simulated(task, 0.4, games), math.sqrt(exact * (1 - exact) / games)
    assert abs(found - exact) < 3 * error
    assert abs(found - other) > 3 * error  # negative control: a little more skill


# --- measures


def test_measures_of_a_win_with_two_wasted_turns_by_hand() -> None:
    task = Task("t", {**task_of("stick", {}, {"wood": 1}).data}, ("depth-3", "held-out"))
    env = Craft(task)
    steps = play(env, ["craft stick", "hm", "collect wood", "craft planks", "craft stick"])
    assert measures(task, played(env, steps)) == {
        "shortest_actions": (3, 1),
        "extra_actions": (2.0, 1.0),
        "wasted_actions": (2, 5),
        "unreadable_actions": (1, 5),
        "dead_ends": (0.0, 1),
        "held_out_success": (1.0, 1.0),
    }


def test_measures_of_a_loss_count_no_extra_actions() -> None:
    task = task_of("table", {"planks": 2}, {}, turns=1)
    env = Craft(task)
    steps = play(env, ["craft stick"])
    assert steps[1].done and not won(env)
    assert measures(task, played(env, steps)) == {
        "shortest_actions": (1, 1),
        "extra_actions": (0.0, 0.0),
        "wasted_actions": (0, 1),
        "unreadable_actions": (0, 1),
        "dead_ends": (1.0, 1),
        "held_out_success": (0.0, 0.0),
    }


# --- tokens


@pytest.mark.parametrize("depth", [4, 8, 12])
def test_games_of_any_kind_are_made_of_pieces_and_short(depth: int) -> None:
    made = craft(depth=depth, tasks=60, skill=0.2)
    _, tokenizer = tiny(made.pieces, 16, 1, 2, closed=made.closed)
    codec = ChatCodec(tokenizer)
    longest = 0
    for k, task in enumerate((*made.tasks["train"], *made.tasks["eval"])):
        assert made.demonstrate is not None
        messages, _ = episode(made.env(task, 0), made.demonstrate(task, python_random((k,))))  # type: ignore[arg-type]
        for message in messages:
            ids = tokenizer.encode(message.content)
            assert tokenizer.decode(ids) == message.content  # no <unk>, nothing lost
            assert len(ids) <= (2 if message.role == "assistant" else 26 if message is messages[0] else 3)
        row = codec.opening(messages[:1]).tolist()
        for reply, answer in zip(messages[1::2], [*messages[2::2], None], strict=True):
            tokens = codec.reply(reply.content)
            completion = Completion(tokens, np.zeros(len(tokens), np.float32), np.zeros(len(tokens), np.int32), "stop")
            assert len(tokens) == 3 and codec.text(completion) == reply.content
            row += [*tokens.tolist(), *([] if answer is None else codec.extension([answer], completion).tolist())]
        assert tokenizer.unk_token_id is None and tokenizer.convert_tokens_to_ids("<unk>") not in row
        longest = max(longest, len(row))
    assert longest <= 24 + 9 * (depth + 2)
    assert codec.append_only


def test_a_word_that_is_no_piece_is_seen_as_such() -> None:
    """Negative control of the round trip."""
    _, tokenizer = tiny(craft(tasks=1).pieces, 16, 1, 2, closed=True)
    assert tokenizer.decode(tokenizer.encode("craft diamond")) != "craft diamond"
    assert tokenizer.decode(tokenizer.encode("craft iron pickaxe")) == "craft iron pickaxe"
    assert len(tokenizer.encode("craft iron pickaxe")) == 2


def test_greedy_crafting_of_everything_stays_within_the_numbers_that_have_a_piece() -> None:
    for seed in range(3):
        made = craft(tasks=60, depth=12, seed=seed)
        for task in (*made.tasks["train"], *made.tasks["eval"]):
            env = Craft(Task("t", {**task.data, "goal": "ladder", "turns": 100}))
            hoard = ["collect wood"] * 2 + ["craft planks"] * 2 + ["craft stick"] * 10
            said = [m.content for step in play(env, hoard)[1:] for m in step.messages if m.content != REFUSAL]
            numbers = {f" {word}" for text in said for word in text.split() if word.isdigit()}
            assert numbers <= set(made.pieces)


def test_the_opening_tells_no_action_of_the_plan() -> None:
    for task in craft(tasks=100).tasks["train"]:
        assert not any(action in opening(task) for action in task.data["plan"])


# --- options


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"depth": 1}, "depth is 1; it must be between 2 and 12"),
        ({"depth": 13}, "depth is 13"),
        ({"slack": -1}, "slack is -1; it must be at least 0"),
        ({"tasks": 0}, "tasks is 0"),
        ({"seed": -1}, "seed is -1"),
        ({"skill": 1.5}, "skill is 1.5"),
        ({"skill": float("nan")}, "skill is nan"),
        ({"achievements": -0.1}, "achievements is -0.1"),
        ({"achievements": float("nan")}, "achievements is nan"),
        ({"achievements": float("inf")}, "achievements is inf"),
    ],
)
def test_impossible_options_are_refused_by_name(options: dict[str, Any], text: str) -> None:
    with pytest.raises(UsageError, match=text):
        craft(**options)


def test_the_catalogue_and_the_recipe_know_the_world() -> None:
    assert world("craft", {"tasks": 3, "achievements": 1}).name == "craft"
    path = Path(__file__).parents[2] / "recipes" / "craft.toml"
    plan, made = plan_of(resolve(read_file(path), {}))
    assert plan.limits.turns == made.turns == 10
    assert plan.limits.longest == made.turns * plan.limits.turn_tokens
    assert plan.limits.context >= 24 + 9 * made.turns  # the longest game that the test above allows
