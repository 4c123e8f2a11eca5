"""THE TABLE: every algorithm of Strop is one line of parts. Invariant: no code here, only data.

A row is the paper's loss without KL unless `terms` lists it, with the paper's number of updates per batch where it states
one: at ratio 1 all ratios and clips are one gradient. Where papers and well-known trainers differ, the row follows the
paper and its source says so. A user's own algorithm is an `Algorithm` value like these, or parts replaced in a run file.
"""

from strop.core.algorithm import (
    GAE,
    Above,
    Algorithm,
    BatchMean,
    Constant,
    Credit,
    Critic,
    Decoupled,
    Divergence,
    GroupMean,
    GroupTokenMean,
    GrowingClip,
    LeaveOneOut,
    MonteCarlo,
    MovingAverage,
    NoClip,
    NoRatio,
    One,
    PPOClip,
    PrefixRatio,
    ProcessGroup,
    ProcessLabels,
    RewardToGo,
    Rounds,
    SampledDivergence,
    SeqMeanTokenMean,
    SeqMeanTokenSum,
    SequenceRatio,
    TokenMean,
    TokenRatio,
    TrajectoryRatio,
    TurnLeaveOneOut,
    TurnRatio,
    WeightClip,
    Zero,
)

GROUP, LOO = GroupMean("population"), LeaveOneOut()
OFF, TOKEN, FREE, PPO = NoRatio(), TokenRatio(), NoClip(), PPOClip(0.2, 0.2)
SUM, EACH, ALL, PER_GROUP = SeqMeanTokenSum(), SeqMeanTokenMean(), TokenMean(), GroupTokenMean()


def _critic(kind: str, warmup: int = 20) -> Credit:
    return GAE(critic=Critic(kind, warmup=warmup))  # type: ignore[arg-type]


# fmt: off
ALGORITHMS: dict[str, Algorithm] = {
    # imitation and self-training
    "sft":                Algorithm(One(), OFF, FREE, ALL, "behaviour cloning, global token mean", data="demonstrations"),
    "rest":               Algorithm(Above(), OFF, FREE, ALL, "Gulcehre 2308.08998, section 3; BC loss; our decay", data="rounds", rounds=Rounds((0.0, 0.5), union=True, decay=0.5)),
    "rest_em":            Algorithm(Above(), OFF, FREE, ALL, "Singh 2312.06585, section 3; cap 10", data="rounds", rounds=Rounds(restart=True, cap=10)),
    "expert_iteration":   Algorithm(Above(), OFF, FREE, ALL, "Anthony 1705.08439; Havrilla 2403.04642", data="rounds"),
    "unfiltered_rounds": Algorithm(One(), OFF, FREE, ALL, "control: rounds that imitate every episode", data="rounds"),
    # policy gradient without ratio
    "reinforce":          Algorithm(RewardToGo(), OFF, FREE, SUM, "Williams 1992, section 5; no baseline"),
    "reinforce_constant": Algorithm(RewardToGo(0.5), OFF, FREE, SUM, "Williams 1992, section 4; b = 0.5"),
    "reinforce_ema":      Algorithm(RewardToGo(MovingAverage(0.95)), OFF, FREE, SUM, "Williams 1992, section 4; decay 0.95"),
    "reinforce_pp":       Algorithm(BatchMean(), TOKEN, PPO, ALL, "Hu 2501.03262, section 3; no KL", updates=2),
    "group_reinforce":    Algorithm(GROUP, OFF, FREE, SUM, "CMU 11-768 lecture 9, simplified GRPO"),
    "rloo":               Algorithm(LOO, OFF, FREE, SUM, "Ahmadian 2402.14740, section 4.2"),
    "turn_rloo":          Algorithm(TurnLeaveOneOut(), OFF, FREE, SUM, "Williams 1992, section 5; baseline: the others' from this turn"),
    # group credit with ratio and clip
    "grpo":               Algorithm(GROUP, TOKEN, PPO, EACH, "Shao 2402.03300, eq. 3 with beta 0; population std"),
    "grpo_process":       Algorithm(ProcessGroup(), TOKEN, PPO, EACH, "Shao 2402.03300, section 4.1.3; population std"),
    "dr_grpo":            Algorithm(GroupMean(), TOKEN, PPO, Constant(), "Liu 2503.20783, C = most tokens of a trajectory"),
    "dapo":               Algorithm(GROUP, TOKEN, PPOClip(0.2, 0.28), PER_GROUP, "Yu 2503.14476, eq. 8; normalised per group", admit="mixed", updates=16),
    "cispo":              Algorithm(GROUP, TOKEN, WeightClip(high=5.0), PER_GROUP, "MiniMax 2506.13585, eq. 4; cap 5 of 2510.13786", updates=16),
    "gspo":               Algorithm(GROUP, SequenceRatio(), PPOClip(3e-4, 4e-4), EACH, "Zheng 2507.18071, eq. 5", updates=4),
    "gspo_token":         Algorithm(GROUP, SequenceRatio("token"), PPOClip(3e-4, 4e-4), EACH, "Zheng 2507.18071, eq. 13", updates=4),
    "turn_ppo":           Algorithm(GROUP, TurnRatio(), PPO, SUM, "PPO 1707.06347 with a turn as the action", updates=4),
    "ctpo":               Algorithm(GROUP, PrefixRatio(), GrowingClip(), EACH, "Zhang 2605.07331; 1/|o| of the paper, bounds of its code", updates=4),
    "full_ratio":         Algorithm(LOO, TrajectoryRatio(), WeightClip(), SUM, "exact importance sampling, no bound", updates=2),
    "decoupled_ppo":      Algorithm(GROUP, TOKEN, PPO, ALL, "Fu 2505.24298, section 5; Hilton 2110.00641", correction=Decoupled(), updates=4),
    # values
    "ppo":                Algorithm(_critic("separate"), TOKEN, PPO, ALL, "Schulman 1707.06347; critic of its own", updates=4),
    "ppo_stopgrad":       Algorithm(_critic("stopgrad"), TOKEN, PPO, ALL, "Ranzato 1511.06732, 3.2.1: head on stopped body", updates=4),
    "ppo_shared":         Algorithm(_critic("shared", 0), TOKEN, PPO, ALL, "Schulman 1707.06347, eq. 9: one body", updates=4),
    "vine_ppo":           Algorithm(MonteCarlo(4), TOKEN, PPO, ALL, "Kazemnejad 2410.01679, section 4; K = 4", updates=4),
    "process_reward":     Algorithm(Zero(), OFF, FREE, ALL, "Wang 2312.08935, section 3; soft labels", terms=(ProcessLabels(),)),
    # teachers
    "distillation":           Algorithm(Zero(), OFF, FREE, ALL, "Hinton 1503.02531: KL(teacher||student) on saved text", terms=(Divergence(1.0, "forward"),), data="demonstrations"),
    "on_policy_distillation": Algorithm(Zero(), OFF, FREE, ALL, "Agarwal 2306.13649: KL(student||teacher) on own text", terms=(Divergence(1.0, "reverse"),)),
    "gkd":                    Algorithm(Zero(), OFF, FREE, ALL, "Agarwal 2306.13649, eq. 2: jsd of student and teacher on own text", terms=(Divergence(1.0, "jsd"),)),
    "opd_top_k":              Algorithm(Zero(), OFF, FREE, ALL, "KL(student||teacher) over both top 64, the rest one bucket", terms=(Divergence(1.0, "reverse", top=64),)),
    "opd_sampled":            Algorithm(Zero(), TOKEN, FREE, ALL, "Thinking Machines, October 2025: sampled KL(student||teacher)", terms=(SampledDivergence(),)),
    "self_distillation":     Algorithm(Zero(), OFF, FREE, ALL, "Zhao 2601.18734, v3: forward KL, first policy told the reference", terms=(Divergence(1.0, "forward", teacher="self", solution="reference"),)),
    "self_distillation_own": Algorithm(Zero(), OFF, FREE, ALL, "after SDPO: JSD 0.5, told a success of its group; teacher frozen", terms=(Divergence(1.0, "jsd", teacher="self", solution="success"),)),
}
# fmt: on
