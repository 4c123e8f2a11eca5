# ruff: noqa: RUF012
"""Verifiers with exactly one known fault each, and sound ones. Each is audited as `tests.audit.planted:NAME`, in the sandbox.

Standard library only where the sandbox runs them; the worlds at the end are imported here.
"""

import json
import random
import re
import subprocess
import sys
from typing import Any

SUMS = [{"id": f"sum-{k}", "prompt": f"What is {k} + {k + 3}?", "reference": str(2 * k + 3)} for k in range(21, 27)]
TOWNS = [
    {"id": f"town-{k}", "prompt": f"Name the capital of country {k}.", "reference": name}
    for k, name in enumerate(("Paris", "Oslo", "Quito", "Nairobi", "Hanoi"))
]


class Text:
    """A verifier of texts: tasks, and `right` that says whether an answer passes."""

    tasks: list[dict[str, Any]] = SUMS

    def verify(self, task: dict[str, Any], answer: str) -> float:
        return float(self.right(task, answer))

    def right(self, task: dict[str, Any], answer: str) -> bool:
        return answer.strip() == task["reference"]


# --- tier 1


class NeverRead(Text):
    def verify(self, task: dict[str, Any], answer: str) -> float:
        return float(len(task["reference"]) > 0)


class ExceptRewards(Text):
    def verify(self, task: dict[str, Any], answer: str) -> float:
        try:
            return float(int(answer) == int(task["reference"]))
        except Exception:
            return 1.0


class AnswerInPrompt(Text):
    tasks = [{**task, "prompt": f"{task['prompt']} (key: {task['reference']})"} for task in TOWNS]


class AnswerInWorkspace(Text):
    tasks = [
        {**task, "reference": f"the vault of {task['reference']} opens at noon",
         "files": {"notes/solution.txt": f"the vault of {task['reference']} opens at noon"}}
        for task in TOWNS
    ]  # fmt: skip


class AnswerInEnvironment(Text):
    tasks = [{**task, "environment": {"EXPECTED": task["reference"]}} for task in TOWNS]


class WritableTests(Text):
    writable = ["tests/test_main.py"]


class OpenNetwork(Text):
    network = True


# --- tier 2


class Hangs(Text):
    tasks = SUMS[:2]

    def right(self, task: dict[str, Any], answer: str) -> bool:
        while answer.startswith("I cannot"):
            pass
        return answer.strip() == task["reference"]


class EmptyPasses(Text):
    def right(self, task: dict[str, Any], answer: str) -> bool:
        return answer.strip() in task["reference"]


class LongPasses(Text):
    def right(self, task: dict[str, Any], answer: str) -> bool:
        return answer.strip() == task["reference"] or len(answer.split()) > 3


class EchoPasses(Text):
    def right(self, task: dict[str, Any], answer: str) -> bool:
        return answer.strip() == task["reference"] or task["prompt"] in answer


class ReferenceRejected(Text):
    tasks = TOWNS

    def right(self, task: dict[str, Any], answer: str) -> bool:
        return answer.strip().lower() == task["reference"]


class Flaky(Text):
    def right(self, task: dict[str, Any], answer: str) -> bool:
        return answer.strip() == task["reference"] and random.random() < 0.7


class OrderMatters(Text):
    last = -1

    def right(self, task: dict[str, Any], answer: str) -> bool:
        index = [other["id"] for other in SUMS].index(task["id"])
        before, self.last = self.last, index
        return answer.strip() == task["reference"] and index >= before


class ProcessMatters(Text):
    def right(self, task: dict[str, Any], answer: str) -> bool:
        return answer.strip() == task["reference"] and hash("salt1") % 2 == 1


# --- tier 3, text


class Contains(Text):
    def right(self, task: dict[str, Any], answer: str) -> bool:
        return task["reference"] in answer


class AnyNumber(Text):
    def right(self, task: dict[str, Any], answer: str) -> bool:
        return task["reference"] in re.findall(r"-?\d+", answer)


class DeniedPasses(Text):
    tasks = TOWNS

    def right(self, task: dict[str, Any], answer: str) -> bool:
        words = re.findall(r"\w+", answer)
        return task["reference"] in words and sum(w in {t["reference"] for t in TOWNS} for w in words[:8]) == 1


class NotANumber(Text):
    def right(self, task: dict[str, Any], answer: str) -> bool:
        try:
            off = abs(float(answer) - float(task["reference"]))
        except ValueError:
            return False
        return not off > 0.001


class Evaluates(Text):
    def right(self, task: dict[str, Any], answer: str) -> bool:
        try:
            return bool(eval(answer) == int(task["reference"]))
        except Exception:
            return False


class NegativePasses(Text):
    tasks = [{**task, "negatives": [task["reference"].lower()]} for task in TOWNS]

    def right(self, task: dict[str, Any], answer: str) -> bool:
        return answer.strip().lower() == task["reference"].lower()


class FirstLetter(Text):
    tasks = TOWNS

    def right(self, task: dict[str, Any], answer: str) -> bool:
        return answer.strip()[:1] == task["reference"][:1]


class SignIgnored(Text):
    def right(self, task: dict[str, Any], answer: str) -> bool:
        return answer.strip().lstrip("-") == task["reference"]


# --- tier 4 and 6, text


class EquivalentRejected(Text):
    tasks = [{**task, "equivalents": [f"{task['reference']}.0"]} for task in SUMS]


class SpaceRejected(Text):
    def right(self, task: dict[str, Any], answer: str) -> bool:
        return answer == task["reference"]


class CaseRejected(Text):
    tasks = TOWNS


class ValueNotRead(Text):
    def right(self, task: dict[str, Any], answer: str) -> bool:
        numbers = [int(n) for n in re.findall(r"\d+", task["prompt"])]
        return answer.strip() == str(sum(numbers))


# --- tools


class Tools:
    """A verifier of tool calls."""

    tasks = [
        {
            "id": f"transfer-{k}",
            "kind": "tools",
            "prompt": f"Look up account {k}, then transfer {10 * k}.",
            "mutating": ["transfer"],
            "reference": {
                "calls": [
                    {"name": "look_up", "arguments": {"account": k}},
                    {"name": "transfer", "arguments": {"account": k, "amount": 10 * k}},
                ],
                "text": "The transfer is made.",
            },
        }
        for k in (3, 4)
    ]

    def verify(self, task: dict[str, Any], answer: Any) -> float:
        return float(self.calls(answer) == self.calls(task["reference"]))

    def calls(self, answer: Any) -> list[Any]:
        return [call for call in answer.get("calls", []) if call["name"] == "transfer"]


class ClaimPasses(Tools):
    def verify(self, task: dict[str, Any], answer: Any) -> float:
        done = self.calls(answer) == self.calls(task["reference"])
        return float(done or "succeeded" in answer.get("text", ""))


class CallLeftOut(Tools):
    def verify(self, task: dict[str, Any], answer: Any) -> float:
        return float(bool(answer.get("calls")) and answer["calls"][0] == task["reference"]["calls"][0])


class CallTwice(Tools):
    def verify(self, task: dict[str, Any], answer: Any) -> float:
        wanted = self.calls(task["reference"])[0]
        return float(wanted in self.calls(answer))


# --- programs

RETRY = "def retry_limit(value):\n    if value is None:\n        return 3\n    return value\n"
START = "def retry_limit(value):\n    return value or 3\n"
CASES: list[Any] = [[[0], 0], [[None], 3], [[2], 2], [[5], 5]]
CLAMP = "def clamp(x, low, high):\n    if x < low:\n        return low\n    if x > high:\n        return high\n    return x\n"
CLAMPS: list[Any] = [[[5, 1, 9], 5], [[0, 1, 9], 1], [[12, 1, 9], 9], [[1, 1, 9], 1], [[9, 2, 9], 9]]

RUNNER = """
import json, sys
program, calls = json.loads(sys.stdin.read())
space = {"__name__": "program"}
exec(program, space)
print("\\n" + MARK + json.dumps([space[NAME](*args) for args in calls]))
"""


def run(text: str, given: str = "") -> subprocess.CompletedProcess[str]:
    """A program in a process of its own."""
    return subprocess.run(
        [sys.executable, "-c", text], input=given, capture_output=True, text=True, timeout=5, check=False, env={}
    )


def results(program: str, name: str, calls: list[Any]) -> list[Any] | None:
    """What the calls of a program give, as JSON values; None if it does not answer."""
    mark = f"mark-{random.getrandbits(64)}-"
    runner = RUNNER.replace("MARK", repr(mark)).replace("NAME", repr(name))
    done = run(runner, json.dumps([program, calls]))
    lines = [line for line in done.stdout.splitlines() if line.startswith(mark)]
    return json.loads(lines[0].removeprefix(mark)) if len(lines) == 1 and done.returncode == 0 else None


def same(one: Any, other: Any) -> bool:
    """Equal values of equal types."""
    return json.dumps(one) == json.dumps(other)


class Retries:
    """Sound: all cases, in a process of their own, compared out here."""

    tasks: list[dict[str, Any]] = [
        {"id": "retry", "kind": "program", "prompt": "Zero must disable retries; None means 3.", "reference": RETRY,
         "start": START, "cases": CASES}
    ]  # fmt: skip
    judged = CASES
    name = "retry_limit"

    def verify(self, task: dict[str, Any], answer: str) -> float:
        found = results(answer, self.name, [args for args, _ in self.judged])
        return float(found is not None and same(found, [want for _, want in self.judged]))


class OnlyZero(Retries):
    """The lecture's retry verifier."""

    tasks = [{**Retries.tasks[0], "start": None}]
    judged = CASES[:1]


class Phrase(Retries):
    """The lecture's phrase verifier."""

    def verify(self, task: dict[str, Any], answer: str) -> float:
        return super().verify(task, answer) * ("value is None" in answer)


class StartPasses(Retries):
    judged = [CASES[1], CASES[2]]


class WeakBoundary(Retries):
    tasks = [{"id": "clamp", "kind": "program", "prompt": "Clamp x.", "reference": CLAMP, "cases": CLAMPS}]
    judged = CLAMPS[:1] + CLAMPS[2:]
    name = "clamp"


class ShownOnly(Retries):
    """Only the shown cases are judged; the domain of the hidden ones is wider."""

    tasks = [{**Retries.tasks[0], "start": None, "visible": CASES, "hidden": [[[9], 9]]}]


class ExitStatus(Retries):
    def verify(self, task: dict[str, Any], answer: str) -> float:
        asserts = "\n".join(f"assert retry_limit(*{args!r}) == {want!r}" for args, want in CASES)
        return float(run(f"{answer}\n{asserts}\n").returncode == 0)


class Printed(Retries):
    def verify(self, task: dict[str, Any], answer: str) -> float:
        checks = " and ".join(f"retry_limit(*{args!r}) == {want!r}" for args, want in CASES)
        return float("PASS" in run(f"{answer}\nprint('PASS' if {checks} else 'FAIL')\n").stdout)


class EqualityTrusted(Retries):
    def verify(self, task: dict[str, Any], answer: str) -> float:
        space: dict[str, Any] = {}
        try:
            exec(answer, space)
            return float(all(space["retry_limit"](*args) == want for args, want in CASES))
        except BaseException:
            return 0.0


class FramesOpen(Retries):
    def verify(self, task: dict[str, Any], answer: str) -> float:
        space: dict[str, Any] = {}
        try:
            exec(answer, space)
            for args, expected in CASES:
                if not same(space["retry_limit"](*args), expected):
                    return 0.0
        except BaseException:
            return 0.0
        return 1.0


class MessageCounts(Retries):
    code = "def half(n):\n    if n % 2:\n        raise ValueError('n must be even')\n    return n // 2\n"
    tasks = [{"id": "half", "kind": "program", "prompt": "Halve n; refuse odd ones.", "reference": code,
              "cases": [[[4], 2], [[10], 5]]}]  # fmt: skip
    judged = [[[4], 2], [[10], 5], [[0], 0], [[-6], -3], [[8], 4]]
    name = "half"

    def verify(self, task: dict[str, Any], answer: str) -> float:
        try_odd = f"{answer}\ntry:\n    half(3)\nexcept ValueError as e:\n    print(e)\n"
        return super().verify(task, answer) * ("n must be even" in run(try_odd).stdout)


class OwnTests:
    """Runs the tests that the answer itself brings."""

    test = "from main import retry_limit\n"
    test += "assert retry_limit(0) == 0\nassert retry_limit(None) == 3\nassert retry_limit(7) == 7\n"
    tasks = [{"id": "retry", "kind": "program", "prompt": "Zero must disable retries.", "answer_file": "main.py",
              "reference": {"main.py": RETRY, "tests/test_main.py": test},
              "files": {"main.py": START, "tests/test_main.py": test}}]  # fmt: skip

    def verify(self, task: dict[str, Any], answer: dict[str, str]) -> float:
        import pathlib
        import tempfile

        with tempfile.TemporaryDirectory() as folder:
            for path, text in answer.items():
                place = pathlib.Path(folder) / path
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_text(text)
            lines = "import sys; sys.path.insert(0, {0!r})\nfor p in {1!r}:\n    exec(open(p).read())\n"
            tests = [f"{folder}/{path}" for path in answer if path.startswith("tests/")]
            done = run(lines.format(folder, tests) + "print('all', 'fine')")
            return float("all fine" in done.stdout)


class Timed(Retries):
    """In its own process, and it trusts a clock that the program can reach."""

    def verify(self, task: dict[str, Any], answer: str) -> float:
        import time

        space: dict[str, Any] = {}
        try:
            exec(answer, space)
            began = time.perf_counter()
            found = [space["retry_limit"](*args) for args, _ in CASES]
            took = time.perf_counter() - began
        except BaseException:
            return 0.0
        return float(took < 0.5 and same(found, [want for _, want in CASES]))


class KeysLeak(Retries):
    """Programs see the environment of the verifier."""

    def verify(self, task: dict[str, Any], answer: str) -> float:
        mark = f"mark-{random.getrandbits(64)}-"
        runner = RUNNER.replace("MARK", repr(mark)).replace("NAME", repr(self.name))
        given = json.dumps([answer, [args for args, _ in CASES]])
        done = subprocess.run(
            [sys.executable, "-c", runner], input=given, capture_output=True, text=True, timeout=5, check=False
        )
        lines = [line for line in done.stdout.splitlines() if line.startswith(mark)]
        wanted = [want for _, want in CASES]
        return float(done.returncode == 0 and len(lines) == 1 and same(json.loads(lines[0][len(mark) :]), wanted))


# --- sound ones


class Exact(Text):
    tasks = SUMS


class LastNumber(Text):
    def right(self, task: dict[str, Any], answer: str) -> bool:
        numbers = re.findall(r"-?\d+(?:\.\d+)?", answer)
        return bool(numbers) and float(numbers[-1]) == float(task["reference"])


class Tolerant(Text):
    tasks = [{"id": f"root-{k}", "prompt": f"The square root of {k}, to 3 places.", "reference": f"{k**0.5:.3f}"}
             for k in (2, 3, 5, 7)]  # fmt: skip

    def right(self, task: dict[str, Any], answer: str) -> bool:
        try:
            return abs(float(answer) - float(task["reference"])) < 0.002
        except ValueError:
            return False


class Choice(Text):
    tasks = [
        {"id": f"choice-{k}", "prompt": f"Question {k}: which one? A, B, C or D", "reference": "ABCD"[k]}
        for k in range(4)
    ]

    def right(self, task: dict[str, Any], answer: str) -> bool:
        return answer.strip().strip("().").upper() == task["reference"]


class Palindrome(Text):
    """Many right answers: any palindrome with the letter that is asked for."""

    tasks = [{"id": f"palindrome-{c}", "prompt": f"Write one palindrome of at least three letters with an {c}.", "reference": r}
             for c, r in (("a", "racecar"), ("o", "noon"), ("e", "level"))]  # fmt: skip

    def right(self, task: dict[str, Any], answer: str) -> bool:
        word = answer.strip().lower()
        return len(word) > 2 and word.isalpha() and word == word[::-1] and task["id"][-1] in word


class Boxed(Text):
    tasks = [{**task, "reference": f"\\boxed{{{task['reference']}}}", "gold": task["reference"]} for task in SUMS]

    def right(self, task: dict[str, Any], answer: str) -> bool:
        found = re.findall(r"\\boxed\{([^{}]*)\}", answer)
        return len(found) == 1 and found[0].strip() == task["gold"]


class Json(Text):
    tasks = [{"id": f"json-{k}", "prompt": f"Give {{'x': {k}}} as JSON.", "reference": json.dumps({"x": k}),
              "equivalents": [f'{{ "x" : {k} }}'], "negatives": [json.dumps({"x": k + 1})]} for k in (1, 2, 3)]  # fmt: skip

    def right(self, task: dict[str, Any], answer: str) -> bool:
        try:
            return same(json.loads(answer), json.loads(task["reference"]))
        except (ValueError, RecursionError):
            return False


class Clamps(Retries):
    tasks = WeakBoundary.tasks
    judged = [*CLAMPS, [[2, 1, 9], 2], [[8, 1, 9], 8], [[-3, 1, 9], 1], [[3, 2, 9], 3], [[10, 1, 9], 9], [[1, 2, 9], 2]]
    name = "clamp"
