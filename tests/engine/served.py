"""The other side of `strop.engine.endpoint`: a token endpoint on loopback that answers from a real small model."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np
import torch

from strop.model.attention import RowsLayout
from strop.model.policy import Policy


class Served:
    """What is served, what was asked, and how it misbehaves.

    Args:
        policy: reads and samples.
        renamed: ids whose text is told as another one.

    Attributes:
        asked: (path, body) of every request, in order of arrival.
        headers: of the last request.
        broken: statuses with which the next requests are answered, first to last.
        spoil: changes an answer before it is sent.
    """

    def __init__(self, policy: Policy, renamed: dict[int, str] | None = None) -> None:
        self.policy, self.renamed = policy, renamed or {}
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.headers: dict[str, str] = {}
        self.broken: list[int] = []
        self.spoil = lambda answer: answer
        self._lock = threading.Lock()  # one model, many requests

    def answer(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        self.asked.append((path, body))
        if path.endswith("/models"):
            return {"data": [{"id": "tutor"}]}
        if path.endswith("/detokenize"):
            ids = body["tokens"]
            return {"prompt": "".join(self.renamed.get(i, self.policy.tokenizer.decode([i])) for i in ids)}
        with self._lock:
            return {"choices": [self._scored(body) if "prompt_logprobs" in body else self._sampled(body)]}

    def _logits(self, ids: list[int]) -> torch.Tensor:
        with torch.no_grad():
            each = torch.tensor(ids), torch.arange(len(ids))
            return self.policy.logits(self.policy.hidden(*each, RowsLayout([len(ids)], self.policy.device)))

    def _scored(self, body: dict[str, Any]) -> dict[str, Any]:
        ids = body["prompt"]
        logp = self._logits(ids).float().log_softmax(-1)
        entries: list[Any] = [None]
        for place in range(1, len(ids)):
            own, best = ids[place], int(logp[place - 1].argmax())
            entries.append({str(i): {"logprob": logp[place - 1, i].item(), "rank": 1} for i in {own, best}})
        return {"prompt_logprobs": entries, "token_ids": [best_of(logp)], "finish_reason": "length"}

    def _sampled(self, body: dict[str, Any]) -> dict[str, Any]:
        draw = np.random.default_rng(body["seed"])
        ids: list[int] = []
        while len(ids) < body["max_tokens"]:
            p = (self._logits([*body["prompt"], *ids])[-1].double() / body["temperature"]).softmax(-1).numpy()
            ids.append(int(draw.choice(len(p), p=p / p.sum())))
            if ids[-1] in body["stop_token_ids"]:
                return {"token_ids": ids, "finish_reason": "stop"}
        return {"token_ids": ids, "finish_reason": "length"}


def best_of(logp: torch.Tensor) -> int:
    return int(logp[-1].argmax())


@contextmanager
def serving(served: Served) -> Iterator[str]:
    """The base of its API on a free port of loopback."""

    class Handler(BaseHTTPRequestHandler):
        def _reply(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length) or b"{}")
            served.headers = dict(self.headers)
            status = served.broken.pop(0) if served.broken else 200
            text = json.dumps(served.spoil(served.answer(self.path, body))) if status == 200 else "not today"
            self.send_response(status)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text.encode())

        do_GET = do_POST = _reply  # noqa: N815

        def log_message(self, format: str, *args: Any) -> None:
            """Silent."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
