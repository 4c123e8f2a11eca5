"""Value functions: what a state is worth, read from hidden states by a linear head.

Invariant: V(h_t) is read at the position that predicts token t, so it has seen the history and not the token; a process
score is read at the last token of a turn. A new head gives 0 everywhere. Temperature never touches values.
"""

import copy
from collections.abc import Mapping

import torch

from strop.core.algorithm import Critic
from strop.learn.pack import Pack
from strop.model.policy import Policy


class ValueNet:
    """A linear head on a body.

    Args:
        policy: the policy that is trained.
        kind: `separate` (a copy of the policy's body, in float32), `stopgrad` or `shared` (the policy's body).
    """

    def __init__(self, policy: Policy, kind: str) -> None:
        self.policy, self.kind = policy, kind
        self.body: Policy | None = None
        if kind == "separate":
            self.body = Policy(copy.deepcopy(policy.model).float(), policy.tokenizer, policy.vocabulary)
        self.head = torch.nn.Linear(policy.head.in_features, 1, device=policy.device, dtype=torch.float32)
        torch.nn.init.zeros_(self.head.weight)
        torch.nn.init.zeros_(self.head.bias)

    @property
    def parameters(self) -> list[torch.nn.Parameter]:
        """The net's own weights: the head, and the body where it is separate (its output layer is not used)."""
        own = list(self.head.parameters())
        if self.body is not None:
            own += list(self.body.model.base_model.parameters())
        return own

    def hidden(self, micro: Pack, own: torch.Tensor | None) -> torch.Tensor:
        """Hidden states of all tokens of a pack; [T, width]. `own` are those of the policy, if they are at hand."""
        if self.body is not None:
            return self.body.hidden(micro.ids, micro.positions, micro.layout)
        found = self.policy.hidden(micro.ids, micro.positions, micro.layout) if own is None else own
        return found.detach() if self.kind == "stopgrad" else found

    def read(self, hidden: torch.Tensor) -> torch.Tensor:
        """The head's number at each state; [N]. A logit where the loss is a cross-entropy."""
        return self.head(hidden.to(self.head.weight.dtype)).squeeze(-1)

    def tensors(self) -> dict[str, torch.Tensor]:
        """Weights by name, for checkpoints."""
        named = {f"head.{name}": tensor for name, tensor in self.head.state_dict().items()}
        if self.body is not None:
            named |= {f"body.{name}": t for name, t in self.body.model.base_model.state_dict().items()}
        return named

    def load(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Take weights that `tensors` gave; a body is taken only where there is one of its own."""
        self.head.load_state_dict({n.removeprefix("head."): t for n, t in tensors.items() if n.startswith("head.")})
        body = {n.removeprefix("body."): t for n, t in tensors.items() if n.startswith("body.")}
        if self.body is not None and body:
            self.body.model.base_model.load_state_dict(body)


def as_value(critic: Critic, read: torch.Tensor) -> torch.Tensor:
    """The value that a head's number stands for: itself, or its sigmoid for the bce loss."""
    return torch.sigmoid(read) if critic.loss == "bce" else read
