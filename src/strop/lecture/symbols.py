"""The lecture's symbols and their names in the code. Invariant: every name can be imported; a test does it."""

SYMBOLS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("x", "a task", ("core.task.Task",)),
    ("y_i", "response i of a group: a trajectory", ("core.trajectory.Trajectory",)),
    ("G", "members of a group; the group", ("loop.plan.StagePlan.group_size", "core.trajectory.Group")),
    ("u_t", "a token of the agent", ("core.trajectory.Completion.tokens", "core.trajectory.Row.tokens")),
    ("h_t", "what stands before u_t", ("core.trajectory.Turn.context", "learn.pack.Pack.predictors")),
    ("m_t", "1 where the agent chose the token", ("core.trajectory.Row.sampled", "objective.columns.Columns.sampled")),
    ("|y_i|", "tokens with m = 1", ("objective.columns.Columns.trajectory_tokens",)),
    ("pi_theta", "the policy that is trained", ("model.policy.Policy", "objective.columns.Columns.logp")),
    (
        "pi_old",
        "the policy at the start of the step; without a correction, mu",
        ("objective.objective.Needs.proximal", "objective.columns.Columns.anchor_logp"),
    ),
    (
        "mu",
        "the policy that sampled, as the engine reports it",
        ("core.trajectory.Completion.logprobs", "objective.columns.Columns.behaviour_logp"),
    ),
    (
        "pi_ref",
        "the anchor of the KL: the policy at the start of the stage",
        ("learn.annotate.Models.reference", "objective.columns.Columns.reference_logp"),
    ),
    ("pi_T", "the teacher", ("learn.annotate.Models.teacher", "objective.columns.Columns.divergence")),
    (
        "r_t",
        "the ratio pi_theta / pi_old of a token",
        ("core.algorithm.TokenRatio", "objective.parts.importance_ratio"),
    ),
    ("r_(t+1)", "the reward after action t", ("core.trajectory.Turn.rewards", "credit.outcome.Outcome.turn_rewards")),
    (
        "w_t",
        "the weight pi_old / mu of stale data",
        ("credit.correction.correction_weights", "objective.columns.Columns.correction"),
    ),
    ("rho_t", "the product of the ratios up to t", ("core.algorithm.PrefixRatio",)),
    ("s_i", "the geometric mean of the ratios of y_i", ("core.algorithm.SequenceRatio",)),
    ("A", "the advantage", ("credit.assign.Credits.advantages", "objective.columns.Columns.advantage")),
    (
        "b",
        "a baseline",
        ("core.algorithm.RewardToGo.baseline", "core.algorithm.GroupMean", "core.algorithm.LeaveOneOut"),
    ),
    (
        "V",
        "the value of a state: by a critic, by continuations",
        ("learn.values.ValueNet", "credit.outcome.Outcome.values", "rollout.branch.branch_values"),
    ),
    ("R", "the return of a trajectory", ("core.trajectory.Trajectory.reward", "credit.outcome.Outcome.reward")),
    ("R_t", "the return from t on", ("credit.returns.reward_to_go",)),
    ("delta_t", "the TD error: GAE with lambda 0", ("credit.gae.gae",)),
    ("gamma", "the discount", ("core.algorithm.RewardToGo.discount", "core.algorithm.GAE.discount")),
    ("lambda", "how far GAE looks", ("core.algorithm.GAE.lam",)),
    ("eps", "the bounds of a clip", ("core.algorithm.PPOClip.low", "core.algorithm.PPOClip.high")),
    ("c", "the ceiling of dual clip", ("core.algorithm.PPOClip.dual",)),
    ("C", "the constant length of Dr.GRPO", ("core.algorithm.Constant.length",)),
    ("beta", "the coefficient of the KL", ("core.algorithm.KL.coefficient",)),
    ("alpha", "the coefficient of the entropy", ("core.algorithm.Entropy.coefficient",)),
    ("H", "the entropy of the next token", ("objective.columns.Columns.entropy", "model.forward.token_columns")),
    ("KL", "a divergence", ("objective.terms.kl_estimate", "model.divergence.divergence_of")),
    ("tau", "the threshold of rejection sampling", ("core.algorithm.Above.threshold",)),
    ("J", "the objective: what the policy earns on average", ("loop.evaluate.evaluate",)),
    ("L", "the loss, which is minimised", ("objective.objective.loss", "objective.objective.policy_loss")),
)
"""Symbol, meaning, and names below `strop`."""


def symbol_lines() -> list[str]:
    """The table as text, two lines a symbol."""
    width = max(len(symbol) for symbol, _, _ in SYMBOLS)
    lines: list[str] = []
    for symbol, meaning, names in SYMBOLS:
        lines.append(f"{symbol.ljust(width)}  {meaning}")
        lines += [f"{' ' * width}    {name}" for name in names]
    return lines


def symbol_table() -> list[str]:
    """The table as Markdown."""
    lines = ["| symbol | meaning | in the code |", "|---|---|---|"]
    for symbol, meaning, names in SYMBOLS:
        told = symbol.replace("|", "\\|")
        lines.append(f"| `{told}` | {meaning} | {', '.join(f'`{name}`' for name in names)} |")
    return lines
