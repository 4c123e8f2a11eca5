"""The words of `docs/proof.md`, around its tables. Invariant: numbers come in from outside."""


def text(**given: str) -> str:
    """The page.

    Args:
        given: `about` (the processes), `fresh`, `stale`, `stated`, `cases`, `growth` (tables), and numbers that notes name.
    """
    return _PAGE.format(**given)


_PAGE = """# What each row's expected update is

Made by `make proof`; a test makes it again and compares. The code that trains is run on everything that can happen in five
small decision processes, and the mean of its gradients is compared with the exact gradient of an objective.

## How to read it

1. A process is so small that all its trajectories can be listed; a policy is a table of logits with a few parameters.
2. Each batch that can be drawn goes through credit, correction, packing and loss, and counts with its probability.
3. The mean of the updates is held against the gradient of J, the mean return, which is a plain sum differentiated.
4. `unbiased` says that both are equal up to a relative error of 1e-9.
5. `x 0.75` says that the direction is that of the gradient (1 - cosine below 1e-12) and the size 0.75 of it, which a
   learning rate of 4/3 makes up for.
6. `biased 0.58, x 0.48, cos 0.873, flips a` says that the error is 0.58 of the gradient's length, that the update holds
   0.48 of the gradient, that the cosine between both is 0.873, and that parameter `a` is pushed the wrong way.
7. Without a flip it names the parameter that is furthest off: `more b` gets more and `less b` less than its share of the
   update, `nothing for b` gets none; `points away` is an update whose cosine is negative.
8. A row takes its verdict from all its parts together: its aggregation alone may be the bias, so look below at one part
   at a time.
9. Groups have four members, those of `reinforce_ema` two; `V exact` is the true value of the policy that is trained, and
   `V wrong` says 0.9 in every state.
10. A bias is not a defect: it is mostly what an estimator pays for less variance, and it is told so that it surprises
    nobody.

## The processes

A letter is a state and its parameter is the logit of token 1 there; `a1` and `a2` are those of tokens 1 and 2. The policy
that samples stale data has other logits. Observations stand in the rows between the actions, with garbage in every column:
that no loss reaches them is part of the proof.

{about}

## Fresh data

The policy that samples is the one that is trained, so that every ratio is 1 and no clip acts.

{fresh}

## Stale data

Another policy sampled, far from the one that is trained: the trajectories of the graded process have ratios {ratios}, and
PPO's bounds are 0.8 and 1.2.

{stale}

## Rows that state another objective

Imitation and distillation are not after the return, and 1/n or a KL changes what is optimised. Here an update is held
against the gradient of what it is said to follow. Demonstrations are drawn from the stale policy; the
teacher, also one that is told a solution, and the reference are a third one.

{stated}

## One part at a time

Expected updates of the graded process, with the sum over tokens unless said otherwise. V and A are true; n is the number of
tokens that a trajectory sampled.

{cases}

## Larger groups

{growth}

## What is surprising

**The deviation only rescales binary rewards of one task, and turns all others.** With rewards 0 and 1 the credit of a
member depends on the others through the number of successes alone. So its mean is one number for a success and another for
a failure, and the mean update is a multiple of the gradient: 1 in groups of two, 1.41 in groups of three, whatever the task.
In larger groups each task has its own, with 16 members {hard} for the hard one and {easy} for the easy one: what is nearly
always failed, or nearly always solved, counts more. A third reward is above the mean in some groups and below it in others,
and is divided by another deviation each time: on the graded process the sign of `a` flips. As groups grow the deviation
becomes a constant of the task, so the turn within a task fades and the weighing of tasks stays.

**The group mean is the gradient times 1 - 1/G.** The mean holds the member's own return, which takes 1/G of the signal
away; leaving the member out gives all of it. A constant length rescales too: `dr_grpo` is 3/4 divided by two tokens.

**1/n is a bias that no baseline and no group removes.** Only trajectories of two tokens reach `b`, so `b` gets exactly
half; `a` gets a share of short ones and of long ones. Without a baseline its sign flips, since return per token is what is
climbed. With leave-one-out credit it is exactly the gradient of E[(R - b) / n]; in `grpo` the deviation comes on top.

**The token mean is a bias of small batches.** Its denominator is random and goes with the lengths of the batch. As the
batch grows the update tends to the gradient over the mean length, while 1/n stays as wrong as it was.

**A wrong critic hurts through the token mean, and through lambda below 1.** With lambda 1 and a sum over tokens any values
are unbiased. `ppo` takes the token mean, so that wrong values leak into the direction. `vine_ppo` takes the TD error: with
one turn its value is a constant baseline, with two turns the first one learns from values only. Its exact values stand for
those of continuations, whose mean they are: credit is linear in them, so that few continuations are as unbiased as many.

**On stale data only the whole ratio is unbiased with returns.** The prefix ratio is unbiased with the true advantage, which
does not depend on what came later. With returns it is not, since the stale policy drew their end: only the last token is
right. The token ratio keeps the stale policy's states: `b` counts {reached} times, which is how much less often that policy
gets there.

**A turn is an action.** Where there is one turn, the ratio of `turn_ppo` is that of the trajectory; in `observation`, where
a turn is one token, it is that of the token.

**A clip keeps what pulls back.** PPO drops tokens that have already moved where their credit points, and keeps the others
whole. When the sampling policy is far away, what is kept is mostly what goes back to it, and the update can point away from
the gradient. `cispo` drops no token: what staleness does to it is what the token ratio does.

**Dynamic sampling rescales, and weighs tasks.** At ratio 1 `dapo` is `cispo` but for admission. Groups of equal scores would
have taught nothing; drawing others in their place multiplies the update, by another number for each task.

**Imitation of successes climbs P(R > 0).** With rewards 0 and 1 that is J, and where all successes have one length even the
token mean only rescales. On the graded process a return of 0.3 counts as much as one of 1, and `a` flips.

**A KL in the loss forgets what a token does to later ones.** Only k1 in the reward is exact for the KL of whole
trajectories; the full sum over the vocabulary is not. Distillation on the policy's own text is alike: as batches grow it
follows the KL of the tokens with the states held as they are visited.

**Scores that are all equal teach nothing**, whatever they are: `grpo_process` normalises them within the group.
`process_reward` trains its reward model and leaves the policy alone.
"""
