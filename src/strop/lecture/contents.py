"""What the lecture's commands are called, and what each number means. Invariant: data only, no torch: the list is at hand.

The lecture is RL for LLM agents, CMU 11-768, lectures 9 and 11.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Entry:
    """One command.

    Args:
        title: what it shows, in a line.
        text: the explanation, for a student.
        module: module of `strop.lecture` whose `FIGURES` holds it.
    """

    title: str
    text: str
    module: str


ENTRIES: dict[str, Entry] = {
    "objective": Entry(
        "The objective of four trajectories is 0.5",
        "J is the expected return: each trajectory's return counted with the probability that the policy gives it, here "
        "0.30 + 0.20. Its gradient raises what pays more than J and lowers what pays less. The expected update of "
        "REINFORCE, over all four draws, is that gradient.",
        "updates",
    ),
    "bandit": Entry(
        "A baseline leaves the mean gradient at 0.1875 and changes its spread",
        "Arm A pays 1 and is drawn with probability 0.25. A baseline of 0.5 brings the standard deviation of one draw's "
        "gradient from 0.325 to 0.108 and leaves its mean alone, since it does not depend on the arm that was drawn. The "
        "value V = 0.25 is not the best constant: 0.75, the mean of the returns weighted by the squared score, leaves none.",
        "updates",
    ),
    "group": Entry(
        "Group advantages: +-1, +1.73 and -0.58, +0.58 and -1.73",
        "A member's credit is its return minus the mean of its group, over the group's standard deviation: the one "
        "success among three failures gets more than one of two. The lecture's numbers need the population deviation; "
        "the sample deviation, which most trainers use, gives 1.5 and -0.5. Without a deviation it is +0.75 and -0.25.",
        "advantages",
    ),
    "guess": Entry(
        "Guess 10 or 11: the advantage of splitting the interval",
        "9, 10 and 11 are left, and two guesses. After 10 the answer leaves one number, so Q = 1; after 11 two numbers may "
        "be left, so Q = 2/3. V is the mean over a policy that guesses any of the three, and A = Q - V says which guess "
        "was better than usual, although both may win.",
        "advantages",
    ),
    "returns": Entry(
        "Rewards to go: 1, 1, 1",
        "An action is answerable for what comes after it, so R_t sums the rewards from t on. One reward at the end goes to "
        "every action alike; a discount gives early actions less of it. Discounts count turns here: counted in tokens, "
        "credit would depend on how a turn was tokenised.",
        "advantages",
    ),
    "value": Entry(
        "The value of a state is 0.3; its squared error is 0.21, that of 0.6 is 0.30",
        "Three of ten continuations from h_3 succeed, so V(h_3) is about 0.3, give or take 0.14. A critic that is trained "
        "by squared error is pulled to this mean: the slope is 0 there and nowhere else. The error that is left, 0.21, is "
        "the variance of the returns; no prediction gets below it.",
        "updates",
    ),
    "gae": Entry(
        "TD errors 0.3, -0.2, -0.4, and GAE with lambda 0.5: A_3 = 0.1",
        "A TD error says how much better the state looks after the action than before it. GAE adds to it the later errors, "
        "each counted lambda times less: 0.3 + 0.5 (-0.2) + 0.25 (-0.4) = 0.1. Observation tokens take no part: they "
        "neither add an error nor count a step.",
        "advantages",
    ),
    "partial": Entry(
        "Partial rewards tell four failures apart: -0.25, 0, +0.25, 0",
        "If nobody succeeds, success alone gives no credit at all. A quarter of a point for each passed check gives the "
        "group something to learn from. It is logged apart from success. Dividing by the deviation blows it up to "
        "+-1.41, however small the reward of a check is.",
        "advantages",
    ),
    "sampling": Entry(
        "Uninformative groups, and dynamic sampling: keep B and D",
        "In a group that all won or all lost every credit is 0. Dynamic sampling keeps groups whose scores differ and "
        "draws others in place of the rest. How often a group says something, 1 - p^G - (1-p)^G, falls at both ends of the "
        "success rate p and grows with the size of the group.",
        "advantages",
    ),
    "importance": Entry(
        "Importance weights 1.75, 0.5, 0.5 turn an expectation under mu into one under pi",
        "Outcomes were drawn by mu, but pi is asked for: each counts pi/mu. The corrected mean of the returns is that of "
        "pi, 0.7, where the plain mean says 0.4. The weights average to 1; the effective share says how many equal samples "
        "they are worth.",
        "ratios",
    ),
    "product": Entry(
        "1.05 at every token is 131.5 after 100 tokens",
        "The ratio of a trajectory is the product of its token ratios, and small differences multiply: 1.05^100 = 131.5. A "
        "token ratio forgets the history, a geometric mean takes the length out. Strop sums logarithms, and bounds the sum "
        "at 20 before it is exponentiated.",
        "ratios",
    ),
    "prefix": Entry(
        "A quartered history: the next token's ratio is 1, its state's is 0.25",
        "The policy now reaches this state a quarter as often as when it was sampled, although it likes the next token as "
        "much as before. The token ratio sees only the second fact, the prefix ratio carries the first on. The geometric "
        "mean of GSPO is 0.5 for both tokens.",
        "ratios",
    ),
    "clip": Entry(
        "Clip curves: PPO takes the gradient away, CISPO bounds it",
        "Beyond its bound, PPO's loss is flat, so the token has no gradient: for A > 0 above 1.2, for A < 0 below 0.8. On "
        "the other sides it is not bounded at all: at r = 4 and A < 0 the weight is -4. CISPO clips the weight and keeps "
        "the gradient, here on both sides as the lecture draws it.",
        "ratios",
    ),
    "collapse": Entry(
        "Exploration collapses from 0.2, 0.6, 0.2 to 0.01, 0.98, 0.01",
        "The entropy falls from 0.950 to 0.112 nats, and a group's members become copies of each other. The slope of an "
        "entropy bonus is three times weaker where it is needed, so it must act before the collapse. It rewards spread, "
        "not useful actions.",
        "models",
    ),
    "divergence": Entry(
        "Reverse KL 0.223, forward KL 0.193",
        "On-policy distillation samples from the student, and its loss is the reverse KL(S || T): it punishes what the "
        "student does and the teacher would not. The mean of k1 and of k3 over the student's tokens is this number, that "
        "of k2 is not. As a loss, though, it is k2 whose gradient is that of the reverse KL.",
        "models",
    ),
    "growth": Entry(
        "Correction 1: the variance of the log weight grows like n, its deviation like sqrt(n)",
        "The notes say that the variance of the log importance weight grows like sqrt(n). If the token log-ratios are "
        "independent with deviation sigma, the variance is n sigma^2 and the standard deviation sqrt(n) sigma, as measured "
        "here over 4000 trajectories; if one coin decides for all tokens, the variance grows like n^2. The bounds of CTPO, "
        "exp(+- eps sqrt(t)), follow the deviation.",
        "ratios",
    ),
    "telescope": Entry(
        "Correction 2: at lambda 1 the sum telescopes to R - V, not to the final reward",
        "The notes say that at lambda = 1 only the final reward remains. What remains is the return minus the value of the "
        "state (and a bootstrap value, if the episode was cut short): -0.3, -0.6, -0.4 with the lecture's numbers. The "
        "critic is then a baseline only: a wrong one adds spread and no bias.",
        "advantages",
    ),
    "shrink": Entry(
        "Correction 3a: the group mean shrinks the expected update by 1 - 1/G",
        "The notes call the group mean unbiased because it does not depend on the action. It does depend on it: it holds the "
        "member's own return. Over every group that can be drawn the update has the true direction and 1 - 1/G of its "
        "length; only leaving the member out gives the gradient itself.",
        "updates",
    ),
    "scale": Entry(
        "Correction 3b: dividing by the deviation rescales, rotates, and weighs tasks",
        "With binary rewards on one task the update keeps its direction (cosine 1). With three levels of reward it turns: the "
        "first parameter is pushed the wrong way. Over tasks of different difficulty, those that are rarely or nearly "
        "always solved count more than those in between, like 1/sqrt(p(1-p)) in the limit of large groups.",
        "updates",
    ),
    "critics": Entry(
        "Correction 4: three kinds of critic, of which the notes list none",
        "The notes announce three parameterisations and list none; the slides show two. Strop has a separate body, a "
        "head on the policy's body behind a stopped gradient, and a shared body that both losses train. A `no` is a "
        "gradient of exactly 0, on a tiny real model; a dash stands where there are no such weights.",
        "models",
    ),
    "cispo": Entry(
        "Correction 5: PPO, GRPO and GSPO clip the ratio, too; CISPO keeps the gradient",
        "The notes say that CISPO clips the ratio directly. So do PPO, GRPO and GSPO: the difference is that CISPO's "
        "clipped ratio is a detached weight, so that no token drops out. Papers and trainers mean different bounds by the "
        "name: both sides (the lecture), above only (the paper), or a cap of 5.",
        "ratios",
    ),
    "symbols": Entry(
        "The lecture's symbols and their names in the code",
        "Names are below `strop`: `core.task.Task` is `strop.core.task.Task`. The lecture writes r both for the ratio of a "
        "token and for the reward after an action.",
        "symbols",
    ),
}
"""Commands in the order of the document, by name."""
