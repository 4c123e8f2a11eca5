"""A served model: what is scored is what was sent, what is sampled is a demonstration, and every fault has a sentence."""

import asyncio
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from strop.core.engine import Sampling
from strop.core.errors import EngineError, EngineLost, UsageError
from strop.core.source import ModelSource
from strop.engine import endpoint as module
from strop.engine.endpoint import TokenEndpoint
from strop.model.attention import RowsLayout
from strop.model.load import load
from strop.model.policy import Policy
from tests.engine.served import Served, serving

IDS = np.array([1, 5, 3, 3, 7, 2], dtype=np.int32)


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PAUSE", 0.0)


@pytest.fixture(scope="module")
def policy() -> Policy:
    return load(
        ModelSource(
            preset="tiny", pieces=("a", "b", "c", "d", "e", "f"), closed=True, width=16, layers=1, heads=2, seed=3
        )
    )


@pytest.fixture
def served(policy: Policy) -> Served:
    return Served(policy)


@pytest.fixture
def url(served: Served) -> Iterator[str]:
    with serving(served) as address:
        yield address


def own_logp(policy: Policy, ids: np.ndarray) -> np.ndarray:
    with torch.no_grad():
        n = len(ids)
        hidden = policy.hidden(torch.tensor(ids).long(), torch.arange(n), RowsLayout([n], policy.device))
        logp = policy.logits(hidden).float().log_softmax(-1)
    return logp[torch.arange(n - 1), torch.tensor(ids[1:]).long()].numpy()


def test_it_scores_each_id_after_those_before_it(policy: Policy, url: str) -> None:
    found = asyncio.run(TokenEndpoint(url).score(IDS))
    assert np.isnan(found[0])
    np.testing.assert_allclose(found[1:], own_logp(policy, IDS), atol=1e-5)
    assert not np.allclose(found[1:], own_logp(policy, IDS[::-1].copy()), atol=1e-2)


def test_what_it_samples_is_a_demonstration(url: str) -> None:
    engine = TokenEndpoint(url, [2])
    said = [asyncio.run(engine.sample(IDS, Sampling(4), (0, seed), "s")) for seed in range(30)]
    assert all(1 <= len(one.tokens) <= 4 for one in said)
    assert all(np.isnan(one.logprobs).all() and (one.versions == -1).all() for one in said)
    ended = [one for one in said if one.stop == "stop"]
    assert ended and all(one.tokens[-1] == 2 for one in ended)
    assert all(2 not in one.tokens for one in said if one.stop == "length")


def test_one_seed_samples_the_same_ids_and_another_one_others(url: str) -> None:
    engine = TokenEndpoint(url)
    first, again, other = (asyncio.run(engine.sample(IDS, Sampling(8), (0, k), "s")).tokens.tolist() for k in (1, 1, 2))
    assert first == again != other


def test_what_may_pass_is_tried_again(served: Served, url: str) -> None:
    engine = TokenEndpoint(url)
    served.broken = [503, 429, 500]
    assert len(asyncio.run(engine.score(IDS))) == len(IDS)
    assert not served.broken


def test_an_endpoint_that_does_not_come_back_ends_the_run(served: Served, url: str) -> None:
    engine = TokenEndpoint(url)
    served.broken = [503] * module.TRIES
    with pytest.raises(EngineLost, match=r"did not answer in 4 tries .status 503: not today"):
        asyncio.run(engine.score(IDS))


def test_a_request_that_is_refused_is_not_asked_again(served: Served, url: str) -> None:
    engine = TokenEndpoint(url)
    served.broken = [400, 200]
    with pytest.raises(EngineError, match=r"refused a request .status 400.: not today") as caught:
        asyncio.run(engine.score(IDS))
    assert not isinstance(caught.value, EngineLost)
    assert served.broken == [200]


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ({"choices": []}, "without `choices`"),
        ({"choices": [{"text": "hello"}]}, "no `prompt_logprobs` for 6 ids"),
        ({"choices": [{"prompt_logprobs": [None] * 5}]}, "no `prompt_logprobs` for 6 ids"),
        ({"choices": [{"prompt_logprobs": [None] * 6}]}, "no log-probability for id 5 at place 1"),
        ({"choices": [{"prompt_logprobs": [None, *([{"5": {"logprob": 0.7}}] * 5)]}]}, "no log-probability for id 5"),
        ({"choices": [{"prompt_logprobs": [None, *([{"6": {"logprob": -1.0}}] * 5)]}]}, "no log-probability for id 5"),
    ],
)
def test_an_answer_about_something_else_is_refused(
    served: Served, url: str, answer: dict[str, object], message: str
) -> None:
    engine = TokenEndpoint(url)
    served.spoil = lambda _: answer
    with pytest.raises(EngineError, match=message):
        asyncio.run(engine.score(IDS))


def test_a_server_that_gives_text_only_cannot_play(served: Served, url: str) -> None:
    engine = TokenEndpoint(url)
    served.spoil = lambda _: {"choices": [{"text": "hello", "finish_reason": "stop"}]}
    with pytest.raises(EngineError, match="gave no `token_ids`"):
        asyncio.run(engine.sample(IDS, Sampling(4), (0, 1), "s"))


def test_nobody_at_the_address_is_told_with_what_to_do() -> None:
    with pytest.raises(UsageError, match=r"does not answer as a token endpoint: .* did not answer in 4 tries"):
        TokenEndpoint("http://127.0.0.1:9/v1")


def test_a_server_of_something_else_is_told(served: Served, url: str) -> None:
    served.spoil = lambda _: {"hello": "world"}
    with pytest.raises(UsageError, match="does not answer as a token endpoint"):
        TokenEndpoint(url)


def test_one_of_several_models_must_be_named(served: Served, url: str) -> None:
    served.spoil = lambda _: {"data": [{"id": "small"}, {"id": "large"}]}
    with pytest.raises(UsageError, match="serves small, large; name one"):
        TokenEndpoint(url)
    with pytest.raises(UsageError, match="serves no model tall; it serves small, large"):
        TokenEndpoint(url + "#tall")
    assert TokenEndpoint(url + "#large").model == "large"


def test_the_key_comes_from_the_environment_only(served: Served, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    TokenEndpoint(url)
    assert "Authorization" not in served.headers
    monkeypatch.setenv(module.KEY, "secret")
    TokenEndpoint(url)
    assert served.headers["Authorization"] == "Bearer secret"


@pytest.mark.parametrize("index", [0, 4, 9])
def test_the_first_id_with_another_text_is_named(policy: Policy, served: Served, url: str, index: int) -> None:
    ids = list(range(policy.vocabulary))

    def text(some: list[int]) -> str:
        return "".join(policy.tokenizer.decode([i]) for i in some)

    engine = TokenEndpoint(url)
    assert engine.stranger(ids, text) is None
    served.renamed = {index: "other", 9: "others"}
    assert engine.stranger(ids, text) == (index, served.renamed[index])


def test_a_served_model_takes_no_weights(url: str) -> None:
    with pytest.raises(EngineError, match="takes no weights"):
        asyncio.run(TokenEndpoint(url).load({}, 1))
