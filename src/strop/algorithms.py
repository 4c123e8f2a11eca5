"""THE TABLE: every algorithm of Strop is one line of parts. Invariant: no code here, only data.

A row is the paper's loss without KL unless `terms` lists it. A user's own algorithm is an `Algorithm` value like these.
`group_reinforce` is the lecture's simplified GRPO: (R - mean) / std, summed over a trajectory's tokens.
"""

from strop.core.algorithm import (
    Above,
    Algorithm,
    Constant,
    GroupMean,
    LeaveOneOut,
    MovingAverage,
    NoClip,
    NoRatio,
    One,
    PPOClip,
    RewardToGo,
    SeqMeanTokenMean,
    SeqMeanTokenSum,
    TokenMean,
    TokenRatio,
)

POPULATION = GroupMean("population")
OFF, TOKEN, FREE, PPO = NoRatio(), TokenRatio(), NoClip(), PPOClip(0.2, 0.2)
SUM, EACH, ALL = SeqMeanTokenSum(), SeqMeanTokenMean(), TokenMean()

# fmt: off
ALGORITHMS: dict[str, Algorithm] = {
    "sft":                Algorithm(One(), OFF, FREE, ALL, "behaviour cloning, global token mean", data="demonstrations"),
    "reinforce":          Algorithm(RewardToGo(), OFF, FREE, SUM, "Williams 1992, section 5; no baseline"),
    "reinforce_constant": Algorithm(RewardToGo(0.5), OFF, FREE, SUM, "Williams 1992, section 4; b = 0.5"),
    "reinforce_ema":      Algorithm(RewardToGo(MovingAverage(0.95)), OFF, FREE, SUM, "Williams 1992, section 4; decay 0.95"),
    "group_reinforce":    Algorithm(POPULATION, OFF, FREE, SUM, "CMU 11-768 lecture 9, simplified GRPO"),
    "rloo":               Algorithm(LeaveOneOut(), OFF, FREE, SUM, "Ahmadian 2402.14740, section 4.2"),
    "grpo":               Algorithm(POPULATION, TOKEN, PPO, EACH, "Shao 2402.03300, eq. 3 with beta 0; population std"),
    "dr_grpo":            Algorithm(GroupMean(), TOKEN, PPO, Constant(), "Liu 2503.20783, C = most tokens of a trajectory"),
    "expert_iteration":   Algorithm(Above(0.0), OFF, FREE, ALL, "Anthony 1705.08439; Havrilla 2403.04642", data="rounds"),
}
# fmt: on
