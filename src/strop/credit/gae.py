"""Advantages from values: GAE on sampled tokens or on turns, and bi-level. Invariant: the arrays hold sampled tokens (or
turns) only, so observations can neither earn, decay nor carry anything."""

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]


def gae(rewards: Array, values: Array, bootstrap: float, discount: float, lam: float) -> Array:
    """A_t = delta_t + discount lam A_(t+1), delta_t = r_t + discount V_(t+1) - V_t (1506.02438, eq. 16).

    lam = 0 is the TD error, lam = 1 with discount 1 the rewards to go minus V_t. The value target is A_t + V_t.

    Args:
        rewards: reward after each action; [n].
        values: V of the state before each action; [n].
        bootstrap: V of the state after the last action: 0 where the episode terminated.
        discount, lam: per step.

    Returns:
        [n].
    """
    out = np.zeros(len(rewards))
    following, carry = bootstrap, 0.0
    for t in range(len(rewards) - 1, -1, -1):
        delta = rewards[t] + discount * following - values[t]
        carry = delta + discount * lam * carry
        following = values[t]
        out[t] = carry
    return out


def bilevel(
    turn_advantages: Array, turn_values: Array, values: Array, turns: npt.NDArray[np.int64], lam: float
) -> Array:
    """Token advantages inside turns, whose last token gets the target A_turn + V_turn (VAGEN).

    delta_last = A_turn + V_turn - V_last, delta_i = V_(i+1) - V_i, A_i = delta_i + lam A_(i+1), starting anew in each turn.

    Args:
        turn_advantages, turn_values: of each turn; [turns].
        values: V before each sampled token; [n].
        turns: turn of each sampled token; [n].
        lam: of the tokens.

    Returns:
        [n].
    """
    out = np.zeros(len(values))
    for k in range(len(turn_advantages)):
        inside = np.flatnonzero(turns == k)
        if len(inside):
            rewards = np.zeros(len(inside))
            rewards[-1] = turn_advantages[k] + turn_values[k]
            out[inside] = gae(rewards, values[inside], 0.0, 1.0, lam)
    return out


def token_rewards(turn_rewards: Array, final: float, turns: npt.NDArray[np.int64]) -> Array:
    """Rewards on the last sampled token of the turn that earned them; the final one on the very last token.

    A turn without a sampled token gives its reward to the last token before it (to the first of all if there is none).

    Args:
        turn_rewards: [turns].
        final: score and auxiliary rewards.
        turns: turn of each sampled token; [n].
    """
    out = np.zeros(len(turns))
    if not len(turns):
        return out
    for k, reward in enumerate(turn_rewards):
        out[max(int(np.searchsorted(turns, k, side="right")) - 1, 0)] += reward
    out[-1] += final
    return out
