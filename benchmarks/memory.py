"""Peak extra memory of log-probabilities by vocabulary: in chunks against all at once, each in a process of its own.

Linux only: it reads the peak of the resident memory from /proc.
"""

import subprocess
import sys

TOKENS, WIDTH = 2048, 64

CHILD = """
import sys, torch
from types import SimpleNamespace
from strop.model.forward import token_columns
torch.set_num_threads(1)
kind, vocabulary, tokens, width = sys.argv[1], *map(int, sys.argv[2:5])
head = torch.nn.Linear(width, vocabulary, bias=False)
hidden = torch.randn(tokens, width, requires_grad=True)
targets = torch.randint(0, vocabulary, (tokens,))
head.weight.grad = torch.zeros_like(head.weight)
def status(name):
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith(name)) / 1024
with torch.no_grad():  # the gradient of the head is needed either way; let it and the allocator's pools be there before
    torch.zeros_like(head.weight).add_(1.0)
policy = SimpleNamespace(head=head, vocabulary=vocabulary)
token_columns(policy, hidden[:2], targets[:2], 1.0, False)[0].sum().backward()
open("/proc/self/clear_refs", "w").write("5")  # the peak starts anew here
before = status("VmRSS")
if kind == "chunks":
    logp, _ = token_columns(policy, hidden, targets, 1.0, False)
else:
    logp = torch.log_softmax(head(hidden), -1).gather(1, targets[:, None])
logp.sum().backward()
print(status("VmHWM") - before)
"""


def extra(kind: str, vocabulary: int) -> float:
    """Peak resident memory above the start, in MB, of log-probabilities and their gradient."""
    command = [sys.executable, "-c", CHILD, kind, str(vocabulary), str(TOKENS), str(WIDTH)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def results(vocabularies: tuple[int, ...] = (1_000, 50_000, 150_000)) -> list[tuple[int, float, float]]:
    """(vocabulary, MB in chunks, MB at once) for each vocabulary."""
    return [(v, extra("chunks", v), extra("direct", v)) for v in vocabularies]
