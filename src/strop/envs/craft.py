"""Craft: a small world in the manner of Minecraft, as text, where one early mistake can make the goal unreachable.

The agent collects what a place holds and crafts items from it, until it has the goal item or its turns are used up. What a
place holds is finite, and so is what can be wasted: planks that became sticks are gone. Invariant: every task can be won
within its turns, by the shortest plan that a search found, and the plan is in no message.
"""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import combinations, product
from random import Random
from typing import Any

from strop.core.errors import UsageError
from strop.core.message import Message
from strop.core.seeds import python_random
from strop.core.task import Env, Step, Task, Verdict
from strop.core.trajectory import Trajectory
from strop.core.world import Player, World, is_hinted, with_hinted

# --- the rules


@dataclass(frozen=True, slots=True)
class Recipe:
    """How an item is made: `makes` units from the units in `uses`, with the item `at` held. What is `at` is not used up.

    An item that uses nothing is collected, one unit at a time, from the place.
    """

    uses: tuple[tuple[str, int], ...] = ()
    at: str | None = None
    makes: int = 1


ITEMS: dict[str, Recipe] = {
    "wood": Recipe(),
    "planks": Recipe((("wood", 1),), makes=4),
    "stick": Recipe((("planks", 1),), makes=2),
    "table": Recipe((("planks", 2),)),
    "ladder": Recipe((("stick", 3),)),
    "chest": Recipe((("planks", 3),), at="table"),
    "wooden pickaxe": Recipe((("planks", 1), ("stick", 1)), at="table"),
    "stone": Recipe(at="wooden pickaxe"),
    "stone pickaxe": Recipe((("stone", 1), ("stick", 1)), at="table"),
    "sword": Recipe((("stone", 1), ("stick", 1)), at="table"),
    "furnace": Recipe((("stone", 2),), at="table"),
    "coal": Recipe(at="stone pickaxe"),
    "iron": Recipe(at="stone pickaxe"),
    "torch": Recipe((("coal", 1), ("stick", 1))),
    "ingot": Recipe((("iron", 1), ("coal", 1)), at="furnace"),
    "iron pickaxe": Recipe((("ingot", 1), ("stick", 1)), at="table"),
}
"""All items; what an item needs stands before it."""

NAMES = tuple(ITEMS)
PLACE = {"wood": 2, "stone": 3, "coal": 2, "iron": 2}
"""What a place can hold, and the most of it: the items that are collected."""
HELD_OUT = ("stick", "wooden pickaxe", "coal", "ingot")
"""Goals of the eval split only. All are made on the way to goals of the train split."""
GOALS = tuple(name for name in NAMES if name != "wood" and name not in HELD_OUT)
"""Goals of the train split. Wood is one action away wherever it can be had, so it is no goal."""
DEEPEST = 12
"""The longest shortest plan for which tasks of every kind are found soon."""
REFUSAL = 'Reply with "collect" or "craft" and one item.'

State = tuple[int, ...]
"""Units held of each item in the order of `ITEMS`, then units left in the place in the order of `PLACE`."""

_INDEX = {name: k for k, name in enumerate(NAMES)}
_LEFT = {name: len(NAMES) + k for k, name in enumerate(PLACE)}


def state_of(inventory: Mapping[str, int], place: Mapping[str, int]) -> State:
    """The state of an inventory and a place."""
    return (*(inventory.get(name, 0) for name in NAMES), *(place.get(name, 0) for name in PLACE))


def holdings(state: State) -> tuple[dict[str, int], dict[str, int]]:
    """Inventory and place of a state, without what is 0."""
    held = {name: state[k] for name, k in _INDEX.items() if state[k]}
    return held, {name: state[k] for name, k in _LEFT.items() if state[k]}


def lack(state: State, item: str) -> tuple[str, int] | None:
    """What is lacking to obtain an item: (item, units held that it takes); the place lacks it: (item, 0); None: nothing."""
    recipe = ITEMS[item]
    if recipe.at is not None and not state[_INDEX[recipe.at]]:
        return recipe.at, 1
    if not recipe.uses:
        return None if state[_LEFT[item]] else (item, 0)
    return next(((name, n) for name, n in recipe.uses if state[_INDEX[name]] < n), None)


def obtain(state: State, item: str) -> State:
    """The state after collecting or crafting an item that nothing is lacking for."""
    recipe, after = ITEMS[item], list(state)
    after[_INDEX[item]] += recipe.makes
    for name, n in recipe.uses:
        after[_INDEX[name]] -= n
    if not recipe.uses:
        after[_LEFT[item]] -= 1
    return tuple(after)


def action(item: str) -> str:
    """The reply that obtains an item; each item has one way."""
    return f"{'craft' if ITEMS[item].uses else 'collect'} {item}"


def read_action(text: str) -> tuple[str, str] | None:
    """Verb and item of a reply: one action and nothing else, else None."""
    verb, _, item = text.strip().partition(" ")
    return (verb, item) if verb in ("collect", "craft") and item in ITEMS else None


# --- the shortest plan


@cache
def demand(goal: str) -> State:
    """An upper bound of the units of each item, and of the place, that any shortest plan for the goal needs to hold.

    From the goal down: the goal is made once. An item of which `d` units are needed is made at most ceil(d / makes)
    times, since the last making of a longer plan could be left out; that gives what it uses. One more unit is needed of
    a tool or station. What no plan needs has 0.
    """
    units, tools = dict.fromkeys(NAMES, 0), set[str]()
    units[goal] = 1
    for name in reversed(NAMES):
        recipe = ITEMS[name]
        units[name] += name in tools
        times = -(-units[name] // recipe.makes)
        for other, n in recipe.uses:
            units[other] += times * n
        if units[name] and recipe.at is not None:
            tools.add(recipe.at)
    return state_of(units, units)


def shortest(goal: str, inventory: Mapping[str, int], place: Mapping[str, int]) -> tuple[str, ...] | None:
    """A shortest plan, as items in the order to obtain them; None if the goal cannot be reached. Exact.

    Breadth first over states. Units beyond `demand` can never be used by a shortest plan, so they are not told apart and
    not made; that keeps the states few.
    """
    return _plan(goal, state_of(inventory, place))


def _plan(goal: str, state: State) -> tuple[str, ...] | None:
    return _search(goal, tuple(map(min, state, demand(goal))))


@lru_cache(maxsize=1 << 18)
def _search(goal: str, start: State) -> tuple[str, ...] | None:
    bound, aim = demand(goal), _INDEX[goal]
    wanted = [(name, k) for name, k in _INDEX.items() if bound[k]]
    found: dict[State, tuple[str, ...]] = {start: ()}
    queue = deque([start])
    while queue:
        state = queue.popleft()
        plan = found[state]
        if state[aim]:
            return plan
        for name, k in wanted:
            if state[k] < bound[k] and lack(state, name) is None:
                after = tuple(map(min, obtain(state, name), bound))
                if after not in found:
                    found[after] = (*plan, name)
                    queue.append(after)
    return None


def on_the_way(goal: str, inventory: Mapping[str, int]) -> frozenset[str]:
    """Items that lead to the goal by the recipes, the goal left out; what is held already asks for nothing more."""
    found: set[str] = set()
    ahead = [goal]
    while ahead:
        recipe = ITEMS[ahead.pop()]
        for name in (*(name for name, _ in recipe.uses), *([recipe.at] if recipe.at else ())):
            if name not in found and not inventory.get(name):
                found.add(name)
                ahead.append(name)
    return frozenset(found)


# --- the environment


class Craft(Env):
    """One attempt at one task. `weight` is the reward of an achievement: the first of an item that is on the way."""

    def __init__(self, task: Task, weight: float = 0.0) -> None:
        self.task, self.weight = task, weight
        self.state = start_of(task)
        self.actions: list[str | None] = []
        self.possible: list[bool] = []
        self._ahead = set(on_the_way(task.data["goal"], task.data["inventory"]))

    async def start(self) -> Step:
        """The goal, what is held, what the place holds, and the turns."""
        return Step((Message("user", opening(self.task)),))

    async def step(self, message: Message) -> Step:
        """Do one action, if it can be done. Every reply costs a turn."""
        read = read_action(message.content)
        before = self.state
        self.state, answer = act(before, read)
        obtained = read[1] if read is not None and self.state != before else None
        self.actions.append(None if read is None else " ".join(read))
        self.possible.append(obtained is not None)
        rewards: dict[str, float] = {}
        if obtained in self._ahead:
            self._ahead.remove(obtained)
            if self.weight:
                rewards = {"achievement": self.weight}
        if obtained == self.task.data["goal"] or len(self.actions) >= self.task.data["turns"]:
            return Step(rewards=rewards, done=True)
        return Step((Message("user", answer),), rewards)

    def artefacts(self) -> Mapping[str, Any]:
        """What is held and left at the end; the actions in order (None: unreadable) and whether each could be done."""
        inventory, place = holdings(self.state)
        return {
            "inventory": inventory,
            "place": place,
            "actions": list(self.actions),
            "possible": list(self.possible),
        }


def start_of(task: Task) -> State:
    """The state in which a task begins."""
    return state_of(task.data["inventory"], task.data["place"])


def act(state: State, read: tuple[str, str] | None) -> tuple[State, str]:
    """The state after one action and the answer to it. What cannot be done changes nothing.

    Answers: `have stick 2` (done, and how many there are now), `need table 1` (must be held), `no wood` (there is none
    here), `no recipe` (crafting what is only collected), or the refusal of an unreadable reply.
    """
    if read is None:
        return state, REFUSAL
    verb, item = read
    if verb == "collect" and ITEMS[item].uses:
        return state, f"no {item}"
    if verb == "craft" and not ITEMS[item].uses:
        return state, "no recipe"
    missing = lack(state, item)
    if missing is not None:
        return state, f"need {missing[0]} {missing[1]}" if missing[1] else f"no {item}"
    after = obtain(state, item)
    return after, f"have {item} {after[_INDEX[item]]}"


def opening(task: Task) -> str:
    """The first message: the goal and its recipe, what is held, what the place holds, and the turns."""
    goal, recipe = task.data["goal"], ITEMS[task.data["goal"]]
    uses = f" from{_amounts(dict(recipe.uses))}" if recipe.uses else ""
    station = f" with {recipe.at}" if recipe.at else ""
    held, here = _amounts(task.data["inventory"]), _amounts(task.data["place"])
    have = f". You have{held or ' nothing'}. Here:{here or ' nothing'}"
    return f"{REFUSAL} Goal: {goal}{uses}{station}{have}. Turns: {task.data['turns']}"


def _amounts(units: Mapping[str, int]) -> str:
    return "".join(f" {name} {n}" for name, n in units.items())


def pieces(largest: int) -> tuple[str, ...]:
    """All that messages and actions are made of, with numbers up to `largest`."""
    parts = (" Goal:", " from", " with", ". You have", ". Here:", " nothing", ". Turns:")
    words = (REFUSAL, *parts, "have", "need", "no", " recipe", "collect", "craft")
    return (*words, *(f" {name}" for name in NAMES), *(f" {n}" for n in range(1, largest + 1)))


def most(task: Task) -> int:
    """An upper bound of every number that the messages of a task hold."""
    units: dict[str, int] = {}
    for name, recipe in ITEMS.items():
        times = min((units[other] // n for other, n in recipe.uses), default=task.data["place"].get(name, 0))
        units[name] = task.data["inventory"].get(name, 0) + times * recipe.makes
    return max(task.data["turns"], *units.values())


# --- judging and playing


def verify(task: Task, trajectory: Trajectory) -> Verdict:
    """Success is having the goal item at the end."""
    goal, inventory = task.data["goal"], trajectory.artefacts["inventory"]
    won = inventory.get(goal, 0) > 0
    return Verdict(float(won), {"has_goal": won}, reason=f"goal {goal}, inventory {inventory}")


def player(task: Task, stream: Random, skill: float) -> Player:
    """A scripted, imperfect player: the next action of a shortest plan with probability `skill`, else a random one.

    A random action is any at all half of the time, and else any that can be done: those are the mistakes that waste.
    Where the goal has become unreachable there is no plan, and all is random.
    """

    def reply(messages: Sequence[Message]) -> str:
        state = start_of(task)
        for message in messages:
            if message.role == "assistant":
                state, _ = act(state, read_action(message.content))
        if stream.random() < skill:
            plan = _plan(task.data["goal"], state)
            if plan:
                return action(plan[0])
        can_be_done = [name for name in NAMES if lack(state, name) is None]
        return action(stream.choice(can_be_done if can_be_done and stream.random() < 0.5 else NAMES))

    return reply


def measures(task: Task, trajectory: Trajectory) -> Mapping[str, tuple[float, float]]:
    """The exact shortest length beside what was played.

    `shortest_actions`: of the tasks; `extra_actions`: beyond it, of successes; `wasted_actions`: share that could not be
    done; `unreadable_actions`: share that was no action; `dead_ends`: share of episodes that ended where the goal could
    not be reached any more, with any number of turns; `held_out_success`: success on goals that are in eval only.
    """
    found, data = trajectory.artefacts, task.data
    taken, won = len(found["actions"]), found["inventory"].get(data["goal"], 0) > 0
    dead = not won and shortest(data["goal"], found["inventory"], found["place"]) is None
    held_out = "held-out" in task.tags
    return {
        "shortest_actions": (data["shortest"], 1),
        "extra_actions": (float(won) * (taken - data["shortest"]), float(won)),
        "wasted_actions": (found["possible"].count(False), taken),
        "unreadable_actions": (found["actions"].count(None), taken),
        "dead_ends": (float(dead), 1),
        "held_out_success": (float(won and held_out), float(held_out)),
    }


def solution(task: Task, won: Trajectory | None) -> str:
    """The actions of a success that could be done, or the shortest plan, one after the other."""
    if won is None:
        return "".join(task.data["plan"])
    found = won.artefacts
    return "".join(action for action, done in zip(found["actions"], found["possible"], strict=True) if done)


# --- tasks


@cache
def hands(goal: str) -> Mapping[int, Sequence[Mapping[str, int]]]:
    """What an agent may hold at the start, at most two kinds of things, by the shortest plan in the richest place."""
    kinds = [name for name, recipe in ITEMS.items() if recipe.uses and name != goal]
    sets = [chosen for size in range(3) for chosen in combinations(kinds, size)]
    found: dict[int, list[Mapping[str, int]]] = {}
    for chosen in sets:
        for counts in product(*((1, 2) if ITEMS[name].makes > 1 else (1,) for name in chosen)):
            hand = dict(zip(chosen, counts, strict=True))
            plan = shortest(goal, hand, PLACE)
            if plan is not None:
                found.setdefault(len(plan), []).append(hand)
    return found


def draw_tasks(stream: Random, goals: Sequence[str], lengths: Iterable[int], slack: int, taken: set[str]) -> list[Task]:
    """A task of each shortest length in `lengths`, no two the same and none that is in `taken`, which is added to.

    Raises:
        UsageError: there are hardly so many tasks.
    """
    tasks: list[Task] = []
    for length in lengths:
        fitting = [goal for goal in goals if length in hands(goal)]
        draws = (_draw(stream, goal, length, slack) for goal in stream.choices(fitting, k=2000))
        task = next((task for task in draws if task is not None and task.id not in taken), None)
        if task is None:
            raise UsageError(
                f"after {len(tasks)} tasks, 2000 draws gave no new one with a shortest plan of {length} actions; ask for "
                "fewer tasks"
            )
        taken.add(task.id)
        tasks.append(task)
    return tasks


def _draw(stream: Random, goal: str, length: int, slack: int) -> Task | None:
    """A task with a drawn hand and place; None if the place is too poor for the goal."""
    hand = stream.choice(hands(goal)[length])
    place = {name: n for name, plenty in PLACE.items() if (n := stream.randint(0, plenty))}
    plan = shortest(goal, hand, place)
    if plan is None or len(plan) != length:
        return None
    tags = (f"depth-{length}", *(("held-out",) if goal in HELD_OUT else ()))
    content = "".join(f"-{name}-{n}" for name, n in hand.items())
    content += "-here" + "".join(f"-{name}-{n}" for name, n in place.items())
    data = {"goal": goal, "inventory": dict(hand), "place": place, "turns": length + slack}
    data |= {"shortest": length, "plan": [action(item) for item in plan]}
    return Task(f"{goal}{content}".replace(" ", "-"), data, tags)


def craft(
    achievements: float = 0.0,
    skill: float = 0.4,
    slack: int = 2,
    depth: int = 8,
    tasks: int = 1024,
    seed: int = 0,
) -> World:
    """The world.

    Args:
        achievements: reward of the turn that first obtains an item on the way to the goal; 0 gives none.
        skill: how often the scripted player takes the next action of a shortest plan; else it does anything.
        slack: turns of a task beyond its shortest plan.
        depth: shortest plans of the tasks have from 2 to this many actions, each length as often as the others.
        tasks: number of training tasks.
        seed: names the generator of the tasks. The eval tasks do not depend on `tasks`, `skill` or `achievements`.

    The eval split has 4 tasks of each length with goals of the train split, in other places, and 4 with held-out goals.
    """
    if not 0 <= skill <= 1:
        raise UsageError(f"skill is {skill}; it is a probability between 0 and 1")
    if not 0 <= achievements < float("inf"):
        raise UsageError(f"achievements is {achievements}; it must be a number from 0 up")
    if not 2 <= depth <= DEEPEST:
        raise UsageError(f"depth is {depth}; it must be between 2 and {DEEPEST}")
    for name, value, least in (("slack", slack, 0), ("tasks", tasks, 1), ("seed", seed, 0)):
        if value < least:
            raise UsageError(f"{name} is {value}; it must be at least {least}")
    lengths, taken = range(2, depth + 1), set[str]()
    seen = draw_tasks(python_random((seed, 0)), GOALS, [*lengths] * 4, slack, taken)
    held_out = draw_tasks(python_random((seed, 1)), HELD_OUT, [*lengths] * 4, slack, taken)
    train = draw_tasks(python_random((seed, 2)), GOALS, [2 + k % (depth - 1) for k in range(tasks)], slack, taken)
    everything = [*train, *seen, *held_out]
    made = World(
        "craft",
        {"train": train, "eval": [*seen, *held_out]},
        env=lambda task, _: Craft(task, achievements),
        verify=verify,
        demonstrate=lambda task, stream: player(task, stream, 1.0 if is_hinted(task) else skill),
        best_possible=1.0,
        pieces=pieces(max(map(most, everything))),
        closed=True,
        turns=depth + slack,
        measures=measures,
        solution=solution,
        difficulty=lambda task: float(task.data["shortest"]),
    )
    return with_hinted(made)
