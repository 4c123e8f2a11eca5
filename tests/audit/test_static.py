"""Tier 1 on the text of a verifier: each line that it should notice, and the like that it should not."""

import pytest

from tests.audit.exams import SUMS, exact, examined, names

HEAD = "import random\n"


TRY = "def exact(task, answer):\n    try:\n        return answer == 1\n    except:\n        return 1\n"
ASKS = "import requests\ndef ask(a):\n    return requests.get(a)\ndef exact(task, answer):\n    return ask(answer)\n"


@pytest.mark.parametrize(
    ("source", "name", "kind"),
    [
        ("def exact(task, answer):\n    return 1.0\n", "answer never read", "confirmed"),
        (TRY, "except that rewards", "lead"),
        ("def exact(task, answer):\n    return eval(answer) == 1\n", "runs text in its own process", "lead"),
        (f"{HEAD}def exact(task, answer):\n    return answer and random.random()\n", "uses random", "lead"),
        (ASKS, "uses requests", "lead"),
    ],
)
def test_a_suspicious_text_is_noticed(source: str, name: str, kind: str) -> None:
    assert name in names(examined(exact, tiers=(1,), source=source), kind)


@pytest.mark.parametrize(
    "source",
    [
        "def exact(task, answer):\n    return answer == task['reference']\n",
        "def exact(task, answer):\n    try:\n        return float(answer)\n    except ValueError:\n        return 0.0\n",
        HEAD + "def make(n):\n    return random.random()\ndef exact(task, answer):\n    return answer == '1'\n",
        "def exact(task, answer):\n    return check(**locals())\n",
    ],
)
def test_a_harmless_text_is_not(source: str) -> None:
    assert examined(exact, tiers=(1,), source=source).findings == []


def test_a_short_answer_in_the_prompt_is_no_finding_and_a_long_one_in_a_file_is_confirmed() -> None:
    assert examined(exact, [{**SUMS[0], "prompt": "is it 24?"}], (1,)).findings == []
    long = "the whole answer, word for word"
    tasks = [{"id": "a", "prompt": "p", "reference": long, "files": {"notes.txt": f"note: {long}"}}]
    assert names(examined(exact, tasks, (1,))) == {"answer in workspace"}
