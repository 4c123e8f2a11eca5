"""Imitation teaches where to stop: the end of a turn is trained like any other token that was said."""

import asyncio
from dataclasses import replace

import numpy as np
import torch

from strop.algorithms import ALGORITHMS
from strop.core.message import Message
from strop.core.task import Env, Step, Task, Verdict
from strop.core.trajectory import Row
from strop.core.world import World
from strop.credit.assign import assign
from strop.credit.outcome import outcome
from strop.learn.learner import LocalLearner
from strop.learn.schedule import Optimisation
from strop.loop.assemble import chat
from strop.model.attention import RowsLayout
from strop.model.load import ModelSource, load
from strop.model.policy import Policy
from strop.model.tiny import END
from strop.rollout.episode import player_agent
from strop.rollout.group import Table, play_scripted
from strop.rollout.limits import Limits
from strop.rollout.rows import group_rows


class TwoQuestions(Env):
    asked = 1

    async def start(self) -> Step:
        return Step((Message("user", "two and two?"),))

    async def step(self, message: Message) -> Step:
        self.asked += 1
        return Step(done=True) if self.asked > 2 else Step((Message("user", "and three?"),))


def demonstration() -> tuple[Policy, Row]:
    """One conversation of two turns, as a warm start would train it."""
    pieces = ("two and two?", "and three?", "four", "seven")
    policy, codec, _ = chat(load(ModelSource(preset="tiny", width=16, layers=1, heads=2, pieces=pieces)), (), "keep")
    world = World("two", {"train": [Task("t")]}, lambda task, seed: TwoQuestions(), lambda task, t: Verdict(1.0))
    table = Table(world, codec, Limits(turns=2), codec.append_only, 0)

    def says(messages: object) -> str:
        return "four" if len(messages) < 2 else "seven"  # type: ignore[arg-type]

    group = asyncio.run(play_scripted(table, Task("t"), [player_agent(says, codec)], "demonstrate", 0))
    [advantages] = assign(ALGORITHMS["sft"].credit, [[outcome(t) for t in group.trajectories]], {}).advantages
    [row] = group_rows(group, advantages)
    return policy, row


def stops(policy: Policy, row: Row) -> tuple[list[float], list[float]]:
    """Probability of the stop token at the end of each answer, and where an answer should begin."""
    end = policy.tokenizer.convert_tokens_to_ids(END)
    ids = torch.from_numpy(row.tokens.astype(np.int64))
    with torch.no_grad():
        hidden = policy.hidden(ids, torch.arange(len(ids)), RowsLayout([len(ids)], torch.device("cpu")))
        chance = policy.logits(hidden).softmax(-1)[:, end]
    answers = [i for i in range(len(ids)) if row.sampled[i] and ids[i] != end]
    return [chance[i].item() for i in answers], [chance[i - 1].item() for i in answers]


def trained(policy: Policy, row: Row) -> Policy:
    learner = LocalLearner(policy, 1.0, 0)
    learner.begin(ALGORITHMS["sft"], Optimisation(lr=0.02), 50)
    for _ in range(50):
        assert learner.step([row]).updates == 1
    return policy


def test_fifty_steps_on_one_conversation_teach_where_to_stop() -> None:
    policy, row = demonstration()
    end = policy.tokenizer.convert_tokens_to_ids(END)
    spoken = policy.tokenizer.decode(row.tokens[row.sampled])
    assert spoken == f"four{END}seven{END}"
    assert np.isnan(row.behaviour_logp).all()  # nobody sampled it
    before, _ = stops(policy, row)
    assert max(before) < 0.5
    after, early = stops(trained(policy, row), row)
    assert len(after) == 2
    assert min(after) > 0.9
    assert max(early) < 0.1
    assert (row.tokens == end).sum() == 4  # two of them are the questions' ends: context


def test_a_mask_without_the_stop_token_does_not_teach_it() -> None:
    policy, row = demonstration()
    end = policy.tokenizer.convert_tokens_to_ids(END)
    masked = replace(row, sampled=row.sampled & (row.tokens != end))
    assert masked.trained == 2
    after, _ = stops(trained(policy, masked), row)
    assert max(after) < 0.5
