"""Returns of one trajectory. Invariant: observation tokens neither earn, decay nor reset anything."""

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]


def reward_to_go(turn_rewards: Array, final: float, discount: float) -> Array:
    """R_k = sum over j >= k of discount^(j - k) r_j, the final reward counted with the last turn.

    Discounts count turns, not tokens, so that credit does not depend on how a turn was tokenised.

    Args:
        turn_rewards: reward of each turn; [turns].
        final: score and auxiliary rewards, given at the end.
        discount: per turn, 1 for none.

    Returns:
        [turns].
    """
    out = np.zeros(len(turn_rewards), dtype=np.float64)
    running = final
    for k in range(len(turn_rewards) - 1, -1, -1):
        running = float(turn_rewards[k]) + (running if k == len(turn_rewards) - 1 else discount * running)
        out[k] = running
    return out


def token_reward_to_go(rewards: Array, discount: float) -> Array:
    """R_t = r_t + discount R_(t+1) over sampled tokens; [n]. With discount below 1, credit depends on tokenisation."""
    out = np.zeros(len(rewards), dtype=np.float64)
    running = 0.0
    for t in range(len(rewards) - 1, -1, -1):
        running = float(rewards[t]) + discount * running
        out[t] = running
    return out
