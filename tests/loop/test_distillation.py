"""Learning from teachers through the loop: which teacher, of which ids, and that the student comes near."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from strop.config.planning import plan_of
from strop.config.resolve import resolve
from strop.core.algorithm import Algorithm, SampledDivergence, Term
from strop.core.errors import UsageError
from strop.core.source import ModelSource
from strop.core.task import Task
from strop.core.teacher import tag_of
from strop.core.trajectory import Origin, Row
from strop.credit.assign import Credits
from strop.learn import checkpoint
from strop.learn.learner import LocalLearner
from strop.learn.pack import pack
from strop.learn.schedule import Optimisation
from strop.learn.teachers import TEACHER
from strop.loop.assemble import assemble
from strop.loop.taught import addressed, taught
from strop.loop.teachers import matched
from strop.loop.train import StepDone
from strop.model.load import load
from strop.model.policy import Policy
from tests.loop.runs import differences, outcome, planned, resume, start, tables
from tests.objective.batches import TABLE

TAUGHT = {
    "algorithm": {"base": "opd_sampled", "terms": ["sampled_divergence(baseline=True, bound=5)"]},
    "stages.0.steps": 0,
    "stages.1.lr": 0.02,
}


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that has imitated a player who never errs."""
    path = tmp_path_factory.mktemp("teacher") / "run"
    start(path, {"stages.0.steps": 30, "stages.1.steps": 2, "world.skill": 1.0, "keep.steps": 8})
    return path


def steps(path: Path, changes: Mapping[str, Any], until: int | None = None) -> list[StepDone]:
    return [event for event in start(path, changes, until) if isinstance(event, StepDone)]


# --- the student comes near


HORIZON = 3


def histories(vocabulary: int) -> list[list[int]]:
    """Every history that can stand before a token: nothing, one id, two ids."""
    out: list[list[int]] = [[]]
    for _ in range(HORIZON - 1):
        out += [[*h, u] for h in out if len(h) == len(out[-1]) for u in range(vocabulary)]
    return out


def distributions(policy: Policy, asked: list[list[int]]) -> torch.Tensor:
    """Log-probabilities after each history, which follows one id that opens every row; float64 [histories, vocabulary]."""
    rows = [_row([0, *history, 0], i) for i, history in enumerate(asked)]
    out = torch.zeros(len(asked), policy.vocabulary, dtype=torch.float64)
    with torch.no_grad():
        for micro in pack(rows, 1 << 20, None, policy.device):
            logits = policy.logits(policy.hidden(micro.ids, micro.positions, micro.layout))[micro.last - 1]
            for row, z in zip(micro.rows, logits.double(), strict=True):
                out[int(row.origin.group[-6:])] = z.log_softmax(-1)
    return out


def _row(tokens: list[int], group: int) -> Row:
    n = len(tokens)
    mask = np.arange(n) > 0
    return Row(
        np.array(tokens, dtype=np.int32),
        mask,
        np.where(mask, 0, np.nan).astype(np.float32),
        np.where(mask, 0, -1).astype(np.int32),
        np.zeros(n, dtype=np.int32),
        Origin(f"train-{group:06d}", 0, 0),
        {"advantage": np.zeros(n, dtype=np.float32)},
    )


def exact_kl(student: torch.Tensor, teacher: torch.Tensor, asked: list[list[int]]) -> float:
    """KL(student || teacher) of whole sequences: over all histories, chance x KL of the next id."""
    place = {tuple(h): i for i, h in enumerate(asked)}
    total = 0.0
    for history, p, q in zip(asked, student, teacher, strict=True):
        chance = sum(student[place[tuple(history[:k])], u].item() for k, u in enumerate(history))
        total += np.exp(chance) * (p.exp() * (p - q)).sum().item()
    return float(total)


def distilled(terms: tuple[Term, ...], base: str, updates: int) -> tuple[float, float]:
    """Exact divergence before and after so many steps on sequences that the student samples."""
    source = ModelSource(preset="tiny", width=16, layers=1, heads=2, pieces=("a", "b"), closed=True)
    policy, teacher = (load(replace(source, seed=seed)) for seed in (0, 1))
    with torch.no_grad():
        teacher.head.weight.mul_(2)  # opinions that are worth learning; the head is tied to the embedding
    asked = histories(policy.vocabulary)
    place = {tuple(h): i for i, h in enumerate(asked)}
    theirs = distributions(teacher, asked)
    learner = LocalLearner(policy, 1.0, 0, teacher)
    algorithm: Algorithm = replace(TABLE[base], terms=terms)
    learner.begin(algorithm, Optimisation(lr=0.02, lr_end=0.1), updates)
    draw = np.random.default_rng(0)
    before = exact_kl(distributions(policy, asked), theirs, asked)
    for _ in range(updates):
        chances = distributions(policy, asked).exp().numpy()
        rows: list[Row] = []
        for i in range(32):
            tokens: list[int] = []
            for _ in range(HORIZON):
                p = chances[place[tuple(tokens)]]
                tokens.append(int(draw.choice(len(p), p=p / p.sum())))
            rows.append(_row([0, *tokens], i))
        learner.step(_credited(learner, rows))
    return before, exact_kl(distributions(policy, asked), theirs, asked)


def _credited(learner: LocalLearner, rows: list[Row]) -> list[Row]:
    """What a lesson makes of rows without a task's credit."""
    term = learner.wanted.sampled_divergence
    names = ["logp", *(["student_logp", "teacher_logp", "teacher_kl"] if term else [])]
    said = [replace(row, behaviour_logp=row.columns["logp"]) for row in learner.annotate(rows, names)]
    nothing = Credits([[np.zeros(HORIZON)] for _ in said], {}, 0, 0, 0, [])
    credits, _ = taught(term, nothing, [[[row]] for row in said])
    out: list[Row] = []
    for row, [given] in zip(said, credits.advantages, strict=True):
        advantage = np.zeros(len(row), dtype=np.float32)
        advantage[row.sampled] = given
        out.append(row.with_columns(advantage=advantage))
    return out


@pytest.mark.parametrize("base", ["opd_sampled", "on_policy_distillation", "gkd"])
def test_two_hundred_steps_take_nine_tenths_of_the_exact_divergence_away(base: str) -> None:
    terms = TABLE[base].terms if base != "opd_sampled" else (SampledDivergence(baseline=True),)
    before, after = distilled(terms, base, 200)
    assert before > 1
    assert after <= 0.1 * before


def test_without_weight_the_teacher_draws_nobody_near() -> None:
    before, after = distilled((SampledDivergence(0.0),), "opd_sampled", 5)
    assert after == before


# --- whose number joins which credit


def test_what_the_teacher_says_of_masked_tokens_and_of_uncredited_members_changes_nothing() -> None:
    rows = [_row([0, 1, 2, 3], i) for i in range(2)]
    draw = np.random.default_rng(1)
    columns = ("student_logp", "teacher_logp", "teacher_kl")
    rows = [replace(r, sampled=np.array([False, True, False, True])) for r in rows]
    said = [r.with_columns(**{n: -draw.exponential(size=4).astype(np.float32) for n in columns}) for r in rows]
    task = [np.array([0.5, -0.5]), None]
    credits = Credits([list(task)], {}, 0, 0, 0, [])
    term = SampledDivergence(0.5, baseline=True)
    right, metrics = taught(term, credits, [[[said[0]], [said[1]]]])
    [[own, none]] = right.advantages
    assert none is None
    assert own is not None
    s, t, kl = (said[0].columns[n][[1, 3]].astype(np.float64) for n in columns)
    assert own.tolist() == pytest.approx((task[0] + 0.5 * (t - s + kl)).tolist())
    assert [a is b for a, b in zip(credits.advantages[0], task, strict=True)] == [
        True,
        True,
    ]  # the credit was not changed
    for garbage in (1e3, -1e3):
        spoilt = [said[0], replace(said[1])]
        masked = {n: np.where(said[0].sampled, said[0].columns[n], garbage) for n in columns}
        spoilt[0] = said[0].with_columns(**masked)
        spoilt[1] = said[1].with_columns(**{n: np.full(4, garbage) for n in columns})
        found, told = taught(term, credits, [[[spoilt[0]], [spoilt[1]]]])
        assert found.advantages[0][0].tolist() == own.tolist()  # type: ignore[union-attr]
        assert told == metrics
        heard = said[0].with_columns(teacher_logp=np.full(4, garbage))
        assert taught(term, credits, [[[heard], []]])[0].advantages[0][0].tolist() != own.tolist()  # type: ignore[union-attr]


def test_no_term_leaves_the_credit_as_it_is() -> None:
    credits = Credits([[np.ones(2)]], {}, 0, 0, 0, [])
    assert taught(None, credits, [[[]]]) == (credits, {})


# --- tags


def test_a_task_has_the_teacher_of_its_own_tag_or_that_of_all_others() -> None:
    rows = [_row([0, 1], 0)]
    tags = ("*", "math", "code")
    for own, number in ((("code", "hard"), 2), (("math",), 1), (("hard",), 0), ((), 0)):
        [row] = addressed(rows, Task("t", tags=own), tags)
        assert row.columns[TEACHER].tolist() == [number, number]
    assert TEACHER not in addressed(rows, Task("t"), ("*",))[0].columns
    for own, said in ((("math", "code"), "math and code"), (("hard",), "has no teacher")):
        with pytest.raises(UsageError, match=said):
            tag_of(Task("t", tags=own), ("math", "code"))


# --- which ids


def speaking(vocabulary: Mapping[str, int], ids: int | None = None, special: tuple[int, ...] = ()) -> Policy:
    """A policy of which only the vocabulary is asked."""
    words = {i: token for token, i in vocabulary.items()}
    tokenizer: Any = SimpleNamespace(
        get_vocab=lambda: dict(vocabulary),
        all_special_ids=list(special),
        convert_ids_to_tokens=lambda asked: [words[i] for i in asked],
    )
    model: Any = None
    return Policy(model, tokenizer, ids or len(vocabulary))


TEN = {f"t{i}": i for i in range(10)}
TWELVE = {f"t{i}": i for i in range(12)}


def test_teachers_of_other_ids_are_refused_or_cut_where_that_is_said() -> None:
    with pytest.raises(UsageError, match=r"has 12 ids and the policy 10.*model.teacher_ids = 10"):
        matched(speaking(TWELVE), speaking(TEN), None, "big")
    with pytest.raises(UsageError, match=r"has 10 ids and the policy 12.*model.teacher_ids = 10"):
        matched(speaking(TEN), speaking(TWELVE), None, "small")
    swapped = {**TEN, "t3": 4, "t4": 3}
    with pytest.raises(UsageError, match=r"2 tokens differ.*model.teacher_ids = 3"):
        matched(speaking(swapped), speaking(TEN), None, "swapped")
    assert matched(speaking(TWELVE), speaking(TEN), 10, "big").vocabulary == 10
    assert matched(speaking(TEN), speaking(TWELVE), 10, "small").vocabulary == 10
    assert matched(speaking(TEN), speaking(dict(TEN)), None, "same").vocabulary == 10
    for other, cut in ((TWELVE, 11), (swapped, 4)):
        with pytest.raises(UsageError, match="lower it"):
            matched(speaking(other), speaking(TEN), cut, "other")


def test_a_cut_that_loses_the_ends_of_turns_is_refused() -> None:
    for special, spoken in (((11,), ()), ((), (11,))):
        with pytest.raises(UsageError, match="cuts off 't11'"):
            matched(speaking(TEN), speaking(TWELVE, special=special), 10, "small", spoken)
    assert matched(speaking(TEN), speaking(TWELVE, special=(3,)), 10, "small", (4,)).vocabulary == 10


def test_heads_that_are_padded_to_other_sizes_are_no_other_vocabulary() -> None:
    source = ModelSource(preset="tiny", width=16, layers=1, heads=2, pieces=("a",), closed=True)
    policy, padded = load(source), load(replace(source, seed=1))
    padded.model.resize_token_embeddings(padded.vocabulary + 5, mean_resizing=False)
    assert padded.head.out_features == policy.head.out_features + 5
    assert matched(padded, policy, None, "padded") is padded
    assert padded.logits(torch.zeros(1, 16)).shape == policy.logits(torch.zeros(1, 16)).shape


# --- runs


def test_a_run_may_teach_by_its_newest_checkpoint_its_best_or_a_named_one(teacher: Path) -> None:
    def taught_by(path: str) -> dict[str, torch.Tensor]:
        parts = assemble(*planned({**TAUGHT, "model.teacher": path}))
        assert parts.learner.models.teacher is not None
        assert any(f"the teacher {path} is its checkpoint" in note for note in parts.notes)
        return dict(parts.learner.models.teacher.model.state_dict())

    newest, _ = checkpoint.newest(teacher / "checkpoints")
    assert newest is not None
    best = checkpoint.load(newest).state["position"]["best"]["name"]
    old = sorted(p.name for p in (teacher / "checkpoints").glob("step-*"))[0]
    assert old != newest.name
    for path, name in (("", newest.name), ("/checkpoints/best", best), (f"/checkpoints/{old}", old)):
        found, saved = taught_by(f"{teacher}{path}"), checkpoint.load(teacher / "checkpoints" / name).tensors["model"]
        assert all(torch.equal(found[key], value) for key, value in saved.items())


def test_a_student_of_a_run_comes_nearer_and_a_resumed_one_goes_on_bit_for_bit(teacher: Path, tmp_path: Path) -> None:
    changes = {**TAUGHT, "model.teacher": str(teacher), "stages.1.steps": 8, "keep.steps": 2}
    found = [step.values for step in steps(tmp_path / "whole", changes)]
    kls = [values["kl_teacher"] for values in found]
    assert all(kl is not None and kl > 0 for kl in kls)
    assert kls[-1] < 0.7 * kls[0]  # type: ignore[operator]
    assert all(values["teacher_silent"] == 0 for values in found)
    assert all(values["nonzero_advantage"] == 1 for values in found)  # the teacher speaks of every token
    start(tmp_path / "cut", changes, until=3)
    resume(tmp_path / "cut")
    assert differences(outcome(tmp_path / "whole"), outcome(tmp_path / "cut")) == []


def test_a_reward_and_a_teacher_are_trained_together(teacher: Path, tmp_path: Path) -> None:
    base = {"stages.1.steps": 2, "model.teacher": str(teacher), "stages.0.steps": 2}
    both = {**base, "algorithm": {"base": "grpo", "terms": ["sampled_divergence(0.5)", "divergence(0.1, jsd)"]}}
    found = [step.values for step in steps(tmp_path / "both", both) if step.stage[1] == "reinforce"]
    for values in found:
        assert {"kl_teacher", "kl_teacher_k1", "teacher_logp", "teacher_divergence"} <= set(values)
        assert values["teacher_divergence"] is not None
        assert 0 < values["teacher_divergence"] < np.log(2)  # of a mixture of halves


def test_a_folder_that_is_neither_a_model_nor_a_run_is_no_teacher(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"model.teacher: .* is no model directory \(it has no config.json\)"):
        assemble(*planned({**TAUGHT, "model.teacher": str(tmp_path)}))


def test_a_term_without_weight_loads_no_teacher() -> None:
    changes = {"algorithm": {"base": "grpo", "terms": ["sampled_divergence(0)"]}, "stages.0.terms": ["divergence(0)"]}
    parts = assemble(*planned({**changes, "model.teacher": "nobody/has-this"}))
    assert parts.learner.models.teachers == ()


def test_teachers_by_tag_must_cover_the_tasks_of_their_stages_and_each_must_have_some() -> None:
    def plan(teachers: dict[str, str]) -> list[str]:
        craft = tables({"env": "craft", "rollout.turns": 16, "rollout.context": 512, "model.teacher": teachers})
        craft |= {"world": {}, "algorithm": {"base": "opd_sampled"}, "stages": [{"kind": "reinforce", "steps": 1}]}
        return list(plan_of(resolve(craft, {}))[0].teachers)

    assert plan({"depth-3": "x", "*": "y"}) == ["depth-3", "*"]
    with pytest.raises(UsageError, match=r"has no teacher: model\.teacher covers depth-3"):
        plan({"depth-3": "x"})
    with pytest.raises(UsageError, match=r"model.teacher.depth-99 has no effect"):
        plan({"depth-99": "x", "*": "y"})
