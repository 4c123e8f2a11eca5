"""One episode of 200 turns and 50,000 tokens, through rollout, rows, a learner's step and a checkpoint; prints JSON."""

import asyncio
import json
import resource
import sys
from pathlib import Path

import numpy as np
import torch

from strop.algorithms import ALGORITHMS
from strop.codec.chat import ChatCodec
from strop.core.engine import Sampling
from strop.core.source import ModelSource
from strop.core.task import Step, Task
from strop.core.trajectory import Group
from strop.engine.scripted import ScriptedEngine
from strop.learn import checkpoint
from strop.learn.learner import LocalLearner
from strop.learn.schedule import Optimisation
from strop.model.load import load
from strop.rollout.episode import engine_agent, play
from strop.rollout.limits import Limits
from strop.rollout.rows import rows_of
from strop.watch.jsonl import encode
from strop.watch.records import episode_record, trajectory_from_record
from tests.rollout.worlds import Scripted, say

TURNS, EACH = 200, 250


def peak() -> float:
    """Most memory that this process ever held, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    policy = load(ModelSource(preset="tiny", width=8, layers=1, heads=1, context=65_536))
    codec = ChatCodec(policy.tokenizer)
    begin = peak()
    words = np.random.default_rng(0).integers(300, 340, (TURNS, EACH - 1))
    script = [[*line.tolist(), codec.terminator] for line in words]
    engine = ScriptedEngine({"s": script}, codec.stop_ids, logprob=-6.0)
    limits = Limits(turns=TURNS, turn_tokens=EACH, tokens=TURNS * EACH, context=65_536)
    env = Scripted(say("go"), *(say(f"turn {n}") for n in range(TURNS - 1)), Step(done=True))
    agent = engine_agent(engine, Sampling(EACH), (0,), "s")
    played = asyncio.run(play(env, Task("long"), agent, codec, limits, codec.append_only))
    credit = np.linspace(-1, 1, played.sampled_tokens)
    rows = rows_of("train-000000", 0, played, credit)
    match = True
    ends = np.flatnonzero(np.diff(rows[0].sampled.astype(int)) == 1) + 1
    for first, prompt in zip(ends, engine.prompts["s"], strict=True):
        match = match and rows[0].tokens[:first].tolist() == prompt.tolist()

    learner = LocalLearner(policy, 1.0, 0)
    learner.begin(ALGORITHMS["grpo"], Optimisation(), 2)
    report = learner.step(rows)
    state = learner.state()
    tensors = {"model": policy.model.state_dict(), **state["tensors"]}
    saved = checkpoint.load(checkpoint.save(folder, tensors, {"counters": state["counters"]}, "step-00000001"))
    fresh = load(ModelSource(preset="tiny", width=8, layers=1, heads=1, context=65_536))
    fresh.model.load_state_dict(dict(saved.tensors["model"]))
    again = LocalLearner(fresh, 1.0, 0)
    again.begin(ALGORITHMS["grpo"], Optimisation(), 2)
    again.restore(saved.state["counters"], {"optimizer": dict(saved.tensors["optimizer"])})
    # The resumed learner takes the next step on the episode as it was logged, the straight one as it was played.
    record = episode_record(Group("train-000000", played.task, (played,)), 0, played, 1, "reinforce")
    _, _, logged = trajectory_from_record(json.loads(encode(record)))
    again.step(rows_of("train-000000", 0, logged, credit))
    learner.step(rows)
    pairs = zip(fresh.model.parameters(), policy.model.parameters(), strict=True)
    found = {
        "turns": len(played.turns),
        "tokens": played.sampled_tokens,
        "length": len(rows[0]),
        "rows": len(rows),
        "end": played.end,
        "prompts_match": match,
        "updates": report.updates,
        "gradient_norm": report.metrics["gradient_norm"].value,
        "restored": all(torch.equal(a, b) for a, b in pairs),
        "start_mb": begin,
        "peak_mb": peak(),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
