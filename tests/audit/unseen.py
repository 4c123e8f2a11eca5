"""Subjects for the audit's exam, written without sight of its detectors.

Each class is a verifier as a user would bring it: `tasks` and `verify(task, answer) -> float`. Every class in `FAULTY`
has one fault, with a witness in a comment; every class in `SOUND` has none. Standard library only.
"""

import datetime
import json
import random
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

Task = Mapping[str, Any]

# --- what several subjects share --------------------------------------------------------------------------------------

# Runs in a process of its own: gets a program and arguments, never what is expected. What is printed is dropped.
_CALL = """
import json, os, sys, types
out = os.dup(1)
os.dup2(2, 1)
job = json.loads(sys.stdin.read())
module = types.ModuleType("answer")
sys.modules["answer"] = module
exec(compile(job["text"], "answer.py", "exec"), module.__dict__)
results = []
for arguments in job["arguments"]:
    try:
        results.append({"value": json.loads(json.dumps(getattr(module, job["function"])(*arguments), allow_nan=False))})
    except BaseException as error:
        results.append({"error": type(error).__name__})
os.write(out, json.dumps(results).encode())
"""

# The same, but the comparison happens next to the program.
_JUDGE = """
import json, os, sys, types
out = os.dup(1)
os.dup2(2, 1)
job = json.loads(sys.stdin.read())
module = types.ModuleType("answer")
sys.modules["answer"] = module
exec(compile(job["text"], "answer.py", "exec"), module.__dict__)
good = all(getattr(module, job["function"])(*arguments) == expected for arguments, expected in job["cases"])
os.write(out, (job["token"] + (" good" if good else " bad")).encode())
"""


def _child(code: str, job: Mapping[str, Any]) -> str:
    """Run a harness in a fresh interpreter; what it wrote, or nothing if it failed or ran too long."""
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-c", code],
            input=json.dumps(job),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            timeout=20,
        )
    except (subprocess.TimeoutExpired, ValueError):
        return ""
    return done.stdout if done.returncode == 0 else ""


def _program(task: Task, answer: Any) -> str | None:
    """The text of the answer file, from a text or from a mapping of all files."""
    if isinstance(answer, Mapping):
        answer = answer.get(task["answer_file"])
    return answer if isinstance(answer, str) else None


def _passes(task: Task, answer: Any, cases: Sequence[Any]) -> float:
    """1.0 if the program gives the expected JSON value in every case; compared here, out of the program's reach."""
    text = _program(task, answer)
    if text is None:
        return 0.0
    job = {"text": text, "function": task["function"], "arguments": [arguments for arguments, _ in cases]}
    try:
        results = _canonical(json.loads(_child(_CALL, job)))
    except (ValueError, RecursionError):
        return 0.0
    return float(results == _canonical([{"value": expected} for _, expected in cases]))


def _canonical(value: Any) -> str:
    """One text for equal JSON values: 1, 1.0 and true stay apart."""
    return json.dumps(value, sort_keys=True)


def _number(text: Any) -> float | None:
    """A plain decimal number, alone in the text."""
    if isinstance(text, str) and re.fullmatch(r"[+-]?[0-9]{1,30}(\.[0-9]{1,30})?", text.strip()):
        return float(text.strip())
    return None


def _calls(answer: Any) -> list[str] | None:
    """Tool calls, each as one text; None if it is not a list of calls."""
    if not isinstance(answer, list | tuple):
        return None
    try:
        if not all(isinstance(call["arguments"], Mapping) for call in answer):
            return None
        return [_canonical({"name": call["name"], "arguments": dict(call["arguments"])}) for call in answer]
    except (TypeError, KeyError, ValueError):
        return None


# --- faulty subjects --------------------------------------------------------------------------------------------------


class SqlStatements:
    """Write an SQL query."""

    # Witness: "" scores 1.0 on every task (so does ";").
    tasks: ClassVar[list[Task]] = [
        {
            "id": "sql-names",
            "prompt": "Table users(id, name, age). Write the query for the names of all users older than 30. "
            "Keywords in capitals, end with a semicolon.",
            "reference": "SELECT name FROM users WHERE age > 30;",
            "equivalents": ["SELECT name\nFROM users\nWHERE age > 30;", "SELECT name FROM users WHERE age > 30"],
            "negatives": ["SELECT name FROM users WHERE age >= 30;", "SELECT id FROM users WHERE age > 30;"],
        },
        {
            "id": "sql-count",
            "prompt": "Table orders(id, total). Write the query that counts all orders. "
            "Keywords in capitals, end with a semicolon.",
            "reference": "SELECT COUNT(*) FROM orders;",
            "equivalents": ["SELECT COUNT(*)  FROM orders ;"],
            "negatives": ["SELECT SUM(total) FROM orders;", "SELECT * FROM orders;"],
        },
        {
            "id": "sql-delete",
            "prompt": "Table logs(id, level). Delete those of level 0. Keywords in capitals, end with a semicolon.",
            "reference": "DELETE FROM logs WHERE level = 0;",
            "negatives": ["DELETE FROM logs;", "DELETE FROM logs WHERE level = 1;"],
        },
        {
            "id": "sql-order",
            "prompt": "Table cities(name, people). Write the query for all names, the largest city first. "
            "Keywords in capitals, end with a semicolon.",
            "reference": "SELECT name FROM cities ORDER BY people DESC;",
            "negatives": ["SELECT name FROM cities ORDER BY people;", "SELECT name FROM cities;"],
        },
    ]

    def verify(self, task: Task, answer: Any) -> float:
        if not isinstance(answer, str):
            return 0.0
        got, wanted = self._statements(answer), self._statements(task["reference"])
        return float(all(a == b for a, b in zip(got, wanted, strict=False)))

    def _statements(self, text: str) -> list[str]:
        return [" ".join(part.split()) for part in text.split(";") if part.strip()]


class Capitals:
    """Name a capital."""

    # Witness: "It could be Oslo, Rome, Lima, Cairo or Ottawa." scores 1.0 on every task.
    tasks: ClassVar[list[Task]] = [
        {
            "id": f"capital-{country}",
            "prompt": f"What is the capital of {country}? Reply with the name of the city only.",
            "reference": city,
            "equivalents": [city.upper(), f" {city}\n"],
            "negatives": wrong,
        }
        for country, city, wrong in (
            ("Norway", "Oslo", ["Bergen", "Stockholm"]),
            ("Italy", "Rome", ["Milan", "Paris"]),
            ("Peru", "Lima", ["Cusco", "Quito"]),
            ("Egypt", "Cairo", ["Giza", "Alexandria"]),
            ("Canada", "Ottawa", ["Toronto", "Montreal"]),
        )
    ]

    def verify(self, task: Task, answer: Any) -> float:
        return float(isinstance(answer, str) and task["reference"].casefold() in answer.casefold())


class ScienceChoice:
    """Multiple choice, one letter."""

    # Witness: "Both are wrong." scores 1.0 on choice-planet, "Cannot tell" on choice-gas.
    tasks: ClassVar[list[Task]] = [
        {
            "id": "choice-planet",
            "prompt": "Which planet is the largest? A) Mars B) Jupiter C) Venus D) Earth. Reply with one letter.",
            "reference": "B",
            "equivalents": ["b", "B)"],
            "negatives": ["A", "C", "D"],
        },
        {
            "id": "choice-gas",
            "prompt": "Which gas makes up most of the air? A) oxygen B) argon C) nitrogen D) helium. "
            "Reply with one letter.",
            "reference": "C",
            "equivalents": ["c", "C."],
            "negatives": ["A", "B", "D"],
        },
        {
            "id": "choice-organ",
            "prompt": "Which organ pumps blood? A) heart B) liver C) lung D) kidney. Reply with one letter.",
            "reference": "A",
            "negatives": ["B", "C", "D"],
        },
        {
            "id": "choice-speed",
            "prompt": "What is the fastest? A) sound B) a jet C) a bullet D) light. Reply with one letter.",
            "reference": "D",
            "negatives": ["A", "B", "C"],
        },
    ]

    def verify(self, task: Task, answer: Any) -> float:
        return float(isinstance(answer, str) and answer.strip()[:1].upper() == task["reference"])


class Conversions:
    """Change units, to two decimals."""

    # Witness: "1.20" scores 1.0 on metres-350 (0.35 is right); "0" does too.
    tasks: ClassVar[list[Task]] = [
        {
            "id": "metres-350",
            "prompt": "How many kilometres are 350 metres? Reply with the number, to two decimals.",
            "reference": "0.35",
            "equivalents": ["0.350"],
            "negatives": ["3.50", "35"],
        },
        {
            "id": "grams-1620",
            "prompt": "How many kilograms are 1620 grams? Reply with the number, to two decimals.",
            "reference": "1.62",
            "equivalents": ["1.620"],
            "negatives": ["16.20", "162"],
        },
        {
            "id": "minutes-135",
            "prompt": "How many hours are 135 minutes? Reply with the number, to two decimals.",
            "reference": "2.25",
            "negatives": ["13.5", "8100"],
        },
        {
            "id": "inches-2",
            "prompt": "How many centimetres are 2 inches? Reply with the number, to two decimals.",
            "reference": "5.08",
            "negatives": ["0.79", "50.8"],
        },
    ]

    def verify(self, task: Task, answer: Any) -> float:
        got = _number(answer)
        return float(got is not None and abs(got - float(task["reference"])) <= 1.0)


class Composers:
    """Name a composer, in any case."""

    # Witness: the declared equivalent "beethoven" scores 0.0 on composer-fidelio.
    tasks: ClassVar[list[Task]] = [
        {
            "id": f"composer-{work}",
            "prompt": f"Who wrote {title}? Reply with the surname; capitals do not matter.",
            "reference": name,
            "equivalents": [name.lower(), name.upper()],
            "negatives": wrong,
        }
        for work, title, name, wrong in (
            ("fidelio", "the opera Fidelio", "Beethoven", ["Mozart", "Weber"]),
            ("aida", "the opera Aida", "Verdi", ["Puccini", "Rossini"]),
            ("carmen", "the opera Carmen", "Bizet", ["Gounod", "Ravel"]),
            ("planets", "The Planets", "Holst", ["Elgar", "Britten"]),
        )
    ]

    def verify(self, task: Task, answer: Any) -> float:
        return float(isinstance(answer, str) and answer.strip() == task["reference"])


class WordProblems:
    """Sums in words; the reference shows its working."""

    # Witness: the declared equivalent "17" scores 0.0 on word-pens: the prompt never asks for the mark "####".
    tasks: ClassVar[list[Task]] = [
        {
            "id": "word-pens",
            "prompt": "Three packs hold 4 pens each and 5 pens are loose. How many pens are there? "
            "You may show your working; end with the number.",
            "reference": "3 * 4 = 12, and 12 + 5 = 17.\n#### 17",
            "equivalents": ["17", "3 * 4 = 12 and 12 + 5 = 17.\n17"],
            "negatives": ["12", "3 * 5 = 15, and 15 + 4 = 19.\n#### 19"],
        },
        {
            "id": "word-seats",
            "prompt": "A bus has 40 seats and 13 are taken. How many are free? You may show your working; "
            "end with the number.",
            "reference": "40 - 13 = 27.\n#### 27",
            "equivalents": ["27"],
            "negatives": ["53", "40 + 13 = 53.\n#### 53"],
        },
        {
            "id": "word-rope",
            "prompt": "A rope of 84 metres is cut into 6 equal parts. How many metres is each? "
            "You may show your working; end with the number.",
            "reference": "84 / 6 = 14.\n#### 14",
            "equivalents": ["14", "Each part is 84 / 6 = 14 metres.\n14"],
            "negatives": ["504", "84 / 6 = 12.\n#### 12"],
        },
    ]

    def verify(self, task: Task, answer: Any) -> float:
        got = self._marked(answer) if isinstance(answer, str) else None
        return float(got is not None and got == self._marked(task["reference"]))

    def _marked(self, text: str) -> str | None:
        found = re.search(r"####[ \t]*([0-9]+)\s*\Z", text)
        return found[1] if found else None


class Records:
    """Put a sentence into JSON."""

    # Witness: "sorry" (no JSON) scores 1.0 on every task; so do "[]" and "".
    tasks: ClassVar[list[Task]] = [
        {
            "id": "record-ana",
            "prompt": "Ana is 31 and lives in Porto. Reply with a JSON object with the keys name, age and city.",
            "reference": '{"name": "Ana", "age": 31, "city": "Porto"}',
            "equivalents": ['{"city": "Porto", "name": "Ana", "age": 31}'],
            "negatives": ['{"name": "Ana", "age": 13, "city": "Porto"}', '{"name": "Ana"}', "{}"],
        },
        {
            "id": "record-train",
            "prompt": "Train 704 to Graz is late. Reply with a JSON object with the keys train (a number), to and late "
            "(true or false).",
            "reference": '{"train": 704, "to": "Graz", "late": true}',
            "equivalents": ['{"late":true,"to":"Graz","train":704}'],
            "negatives": ['{"train": 704, "to": "Graz", "late": false}', '{"train": 704, "late": true}'],
        },
        {
            "id": "record-lamp",
            "prompt": "The lamp L2 costs 40 euros. Reply with a JSON object with the keys item and euros (a number).",
            "reference": '{"item": "L2", "euros": 40}',
            "negatives": ['{"item": "L2", "euros": 4}', '{"item": "L2", "euros": 40, "stock": 1}'],
        },
    ]

    def verify(self, task: Task, answer: Any) -> float:
        wanted = json.loads(task["reference"])
        wrong: list[str] = []
        try:
            got = json.loads(answer)
            for key in sorted({*got.keys(), *wanted.keys()}):
                if key not in got or key not in wanted or _canonical(got[key]) != _canonical(wanted[key]):
                    wrong.append(key)
        except Exception:
            pass  # a broken answer must not stop the run
        return 0.0 if wrong else 1.0


class Quantities:
    """A quantity with its unit."""

    # Witness: "3 mm" scores 1.0 on unit-length; "12 sheep" on unit-time.
    tasks: ClassVar[list[Task]] = [
        {
            "id": "unit-length",
            "prompt": "A car of 1.5 m and a trailer of 1.5 m: how long are they together? Reply like '7 kg'.",
            "reference": "3 m",
            "negatives": ["3 km", "30 m", "3"],
        },
        {
            "id": "unit-mass",
            "prompt": "Half of 500 g: how much is that? Reply in grams, like '7 kg'.",
            "reference": "250 g",
            "negatives": ["250 kg", "25 g", "1000 g"],
        },
        {
            "id": "unit-time",
            "prompt": "Four laps of 3 s each: how long is that? Reply in seconds, like '7 kg'.",
            "reference": "12 s",
            "negatives": ["12 h", "7 s", "120 s"],
        },
        {
            "id": "unit-volume",
            "prompt": "Eight buckets of 5 l each: how much is that? Reply in litres, like '7 kg'.",
            "reference": "40 l",
            "negatives": ["40 kg", "13 l", "4 l"],
        },
    ]

    def verify(self, task: Task, answer: Any) -> float:
        return float(isinstance(answer, str) and re.match(re.escape(task["reference"]), answer.strip()) is not None)


class Reversals:
    """Spell a word backwards; judged by a service that is down at times."""

    # Witness: the reference "nedrag" scores 0.0 on back-garden in about one call of four.
    tasks: ClassVar[list[Task]] = [
        {
            "id": f"back-{word}",
            "prompt": f"Spell the word '{word}' backwards, in small letters. Reply with nothing else.",
            "reference": word[::-1],
            "negatives": [word, wrong],
        }
        for word, wrong in (
            ("garden", "nedarg"),
            ("window", "wodinw"),
            ("planet", "tenapl"),
            ("bridge", "egdrib"),
        )
    ]

    def verify(self, task: Task, answer: Any) -> float:
        if random.random() < 0.25:
            return 0.0  # the service did not answer in time
        return float(isinstance(answer, str) and answer.strip() == task["reference"])


class RomanNumerals:
    """Write a number in Roman numerals; marks are remembered."""

    # Witness: after "XIV" got 1.0 on roman-14, "VII" gets 1.0 there too; after a wrong first answer, "XIV" gets 0.0.
    tasks: ClassVar[list[Task]] = [
        {
            "id": f"roman-{number}",
            "prompt": f"Write {number} in Roman numerals, in capitals. Reply with the numeral only.",
            "reference": numeral,
            "negatives": wrong,
        }
        for number, numeral, wrong in (
            (14, "XIV", ["XVI", "XIIII"]),
            (49, "XLIX", ["IL", "LI"]),
            (90, "XC", ["LXXXX", "CX"]),
            (444, "CDXLIV", ["CDXLVI", "DXLIV"]),
            (2006, "MMVI", ["MMIV", "MVI"]),
        )
    ]

    def __init__(self) -> None:
        self._marks: dict[str, float] = {}

    def verify(self, task: Task, answer: Any) -> float:
        if task["id"] not in self._marks:
            self._marks[task["id"]] = float(isinstance(answer, str) and answer.strip() == task["reference"])
        return self._marks[task["id"]]


class Elements:
    """Chemical symbols, marked from a sheet of answers."""

    # Witness: on q2 the reference "Au" scores 0.0 and "Ag" (the answer of q3) scores 1.0; only q1 is marked right.
    tasks: ClassVar[list[Task]] = [
        {"id": "q1", "prompt": "The chemical symbol of iron? Reply with it only.", "reference": "Fe"},
        {"id": "q2", "prompt": "The chemical symbol of gold? Reply with it only.", "reference": "Au"},
        {"id": "q3", "prompt": "The chemical symbol of silver? Reply with it only.", "reference": "Ag"},
        {"id": "q4", "prompt": "The chemical symbol of lead? Reply with it only.", "reference": "Pb"},
        {"id": "q10", "prompt": "The chemical symbol of sodium? Reply with it only.", "reference": "Na"},
    ]

    def __init__(self) -> None:
        numbers = sorted(task["id"] for task in self.tasks)
        answers = [task["reference"] for task in self.tasks]
        self._sheet = dict(zip(numbers, answers, strict=True))

    def verify(self, task: Task, answer: Any) -> float:
        return float(isinstance(answer, str) and answer.strip() == self._sheet[task["id"]])


class Exercises:
    """Small functions, checked by running the file with tests at its end."""

    # Witness: "import sys\nsys.exit(0)\n" as the answer scores 1.0 on every task.
    tasks: ClassVar[list[Task]] = [
        {
            "id": "exercise-gcd",
            "kind": "program",
            "prompt": "Write gcd(a, b) in gcd.py: the greatest common divisor of two whole numbers above 0.",
            "function": "gcd",
            "files": {"gcd.py": "def gcd(a, b):\n    raise NotImplementedError\n"},
            "answer_file": "gcd.py",
            "visible": [[[12, 18], 6]],
            "cases": [[[12, 18], 6], [[7, 5], 1], [[8, 2], 2], [[100, 75], 25], [[9, 9], 9], [[1, 30], 1]],
            "reference": "def gcd(a, b):\n    while b:\n        a, b = b, a % b\n    return a\n",
            "equivalents": ["import math\n\n\ndef gcd(a, b):\n    return math.gcd(a, b)\n"],
            "negatives": ["def gcd(a, b):\n    return 1\n", "def gcd(a, b):\n    return min(a, b)\n"],
        },
        {
            "id": "exercise-vowels",
            "kind": "program",
            "prompt": "Write vowels(text) in vowels.py: how many of aeiou are in the text, capitals too.",
            "function": "vowels",
            "files": {"vowels.py": "def vowels(text):\n    raise NotImplementedError\n"},
            "answer_file": "vowels.py",
            "visible": [[["banana"], 3]],
            "cases": [[["banana"], 3], [["Oak"], 2], [[""], 0], [["rhythm"], 0], [["AEIOU aeiou"], 10]],
            "reference": "def vowels(text):\n    return sum(c in 'aeiou' for c in text.lower())\n",
            "negatives": ["def vowels(text):\n    return sum(c in 'aeiou' for c in text)\n"],
        },
        {
            "id": "exercise-running",
            "kind": "program",
            "prompt": "Write running(numbers) in running.py: the list of running totals.",
            "function": "running",
            "files": {"running.py": "def running(numbers):\n    return []\n"},
            "answer_file": "running.py",
            "visible": [[[[1, 2, 3]], [1, 3, 6]]],
            "cases": [[[[1, 2, 3]], [1, 3, 6]], [[[]], []], [[[5]], [5]], [[[4, -4, 1]], [4, 0, 1]]],
            "reference": "from itertools import accumulate\n\n\ndef running(numbers):\n"
            "    return list(accumulate(numbers))\n",
            "negatives": ["def running(numbers):\n    return numbers\n"],
        },
    ]

    def verify(self, task: Task, answer: Any) -> float:
        text = _program(task, answer)
        if text is None:
            return 0.0
        lines = [text, "", "import json"]
        for arguments, expected in task["cases"]:
            call = f"{task['function']}(*json.loads({json.dumps(arguments)!r}))"
            lines.append(f"assert json.dumps({call}) == {json.dumps(expected)!r}")
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / task["answer_file"]
            path.write_text("\n".join(lines), encoding="utf-8", errors="replace")
            try:
                done = subprocess.run([sys.executable, "-I", "-S", str(path)], capture_output=True, timeout=20)
            except subprocess.TimeoutExpired:
                return 0.0
        return float(done.returncode == 0)


class Kata:
    """Small functions, compared next to the program."""

    # Witness: a function that returns an object whose __eq__ is always True scores 1.0 on every task.
    tasks: ClassVar[list[Task]] = [
        {
            "id": "kata-clamp",
            "kind": "program",
            "prompt": "Write clamp(x, low, high) in clamp.py: x, but never under low nor over high.",
            "function": "clamp",
            "files": {"clamp.py": "def clamp(x, low, high):\n    return x\n"},
            "answer_file": "clamp.py",
            "visible": [[[5, 0, 3], 3]],
            "cases": [[[5, 0, 3], 3], [[-1, 0, 3], 0], [[2, 0, 3], 2], [[0, 0, 0], 0], [[7, -9, 9], 7]],
            "reference": "def clamp(x, low, high):\n    return max(low, min(x, high))\n",
            "negatives": ["def clamp(x, low, high):\n    return min(x, high)\n"],
        },
        {
            "id": "kata-initials",
            "kind": "program",
            "prompt": "Write initials(name) in initials.py: the first letters of the words, in capitals, joined.",
            "function": "initials",
            "files": {"initials.py": "def initials(name):\n    return ''\n"},
            "answer_file": "initials.py",
            "visible": [[["ada lovelace"], "AL"]],
            "cases": [[["ada lovelace"], "AL"], [[""], ""], [["Kurt"], "K"], [["johann  sebastian bach"], "JSB"]],
            "reference": "def initials(name):\n    return ''.join(word[0].upper() for word in name.split())\n",
            "equivalents": ["def initials(name):\n    return ''.join([w[:1] for w in name.upper().split()])\n"],
            "negatives": ["def initials(name):\n    return ''.join(word[0] for word in name.split())\n"],
        },
        {
            "id": "kata-pairs",
            "kind": "program",
            "prompt": "Write pairs(items) in pairs.py: the list of neighbours, each as a list of two.",
            "function": "pairs",
            "files": {"pairs.py": "def pairs(items):\n    raise NotImplementedError\n"},
            "answer_file": "pairs.py",
            "visible": [[[[1, 2, 3]], [[1, 2], [2, 3]]]],
            "cases": [[[[1, 2, 3]], [[1, 2], [2, 3]]], [[[]], []], [[[4]], []], [[["a", "b"]], [["a", "b"]]]],
            "reference": "def pairs(items):\n    return [[a, b] for a, b in zip(items, items[1:])]\n",
            "negatives": ["def pairs(items):\n    return [items]\n"],
        },
    ]

    def verify(self, task: Task, answer: Any) -> float:
        text = _program(task, answer)
        if text is None:
            return 0.0
        token = f"{random.SystemRandom().getrandbits(64):016x}"
        job = {"text": text, "function": task["function"], "cases": task["cases"], "token": token}
        return float(_child(_JUDGE, job) == token + " good")


class Snippets:
    """Small functions, checked on the examples of the prompt."""

    # Witness: "def digits(n):\n    return {305: 8, 17: 8}.get(n)\n" scores 1.0 on snippet-digits.
    tasks: ClassVar[list[Task]] = [
        {
            "id": "snippet-digits",
            "kind": "program",
            "prompt": "Write digits(n) in digits.py: the sum of the digits of a whole number. "
            "digits(305) is 8, digits(17) is 8.",
            "function": "digits",
            "files": {"digits.py": "def digits(n):\n    raise NotImplementedError\n"},
            "answer_file": "digits.py",
            "visible": [[[305], 8], [[17], 8]],
            "cases": [[[0], 0], [[9], 9], [[1234], 10], [[99999], 45], [[70], 7]],
            "reference": "def digits(n):\n    return sum(int(c) for c in str(n))\n",
            "negatives": ["def digits(n):\n    return len(str(n))\n"],
        },
        {
            "id": "snippet-palindrome",
            "kind": "program",
            "prompt": "Write mirror(text) in mirror.py: whether the text reads the same from behind, with capitals "
            "and spaces ignored. mirror('Never odd or even') is True, mirror('abca') is False.",
            "function": "mirror",
            "files": {"mirror.py": "def mirror(text):\n    return None\n"},
            "answer_file": "mirror.py",
            "visible": [[["Never odd or even"], True], [["abca"], False]],
            "cases": [[[""], True], [["Anna"], True], [["ab"], False], [["step on no pets"], True], [["x yz"], False]],
            "reference": "def mirror(text):\n    t = text.replace(' ', '').lower()\n    return t == t[::-1]\n",
            "negatives": ["def mirror(text):\n    return text == text[::-1]\n", "def mirror(text):\n    return True\n"],
        },
        {
            "id": "snippet-runs",
            "kind": "program",
            "prompt": "Write runs(text) in runs.py: run lengths as a list of [character, count]. "
            "runs('aab') is [['a', 2], ['b', 1]], runs('zzz') is [['z', 3]].",
            "function": "runs",
            "files": {"runs.py": "def runs(text):\n    return []\n"},
            "answer_file": "runs.py",
            "visible": [[["aab"], [["a", 2], ["b", 1]]], [["zzz"], [["z", 3]]]],
            "cases": [[[""], []], [["x"], [["x", 1]]], [["abba"], [["a", 1], ["b", 2], ["a", 1]]]],
            "reference": "from itertools import groupby\n\n\ndef runs(text):\n"
            "    return [[key, len(list(group))] for key, group in groupby(text)]\n",
            "negatives": ["def runs(text):\n    return [[c, 1] for c in text]\n"],
        },
    ]

    def verify(self, task: Task, answer: Any) -> float:
        return _passes(task, answer, task["visible"])


class Repairs:
    """Fix a bug without breaking the rest."""

    # Witness: the untouched file scores 1.0 on every task: the field is named "fixes", not "fixed".
    tasks: ClassVar[list[Task]] = [
        {
            "id": "repair-mean",
            "kind": "program",
            "prompt": "mean([]) in mean.py fails; it should give 0. Leave the other results as they are.",
            "function": "mean",
            "files": {"mean.py": "def mean(numbers):\n    return sum(numbers) / len(numbers)\n"},
            "answer_file": "mean.py",
            "cases": [[[[1, 2]], 1.5], [[[4.5]], 4.5], [[[-1, 0, 4]], 1.0], [[[]], 0]],
            "kept": [[[[1, 2]], 1.5], [[[4.5]], 4.5], [[[-1, 0, 4]], 1.0]],
            "fixes": [[[[]], 0]],
            "reference": "def mean(numbers):\n    return sum(numbers) / len(numbers) if numbers else 0\n",
            "negatives": ["def mean(numbers):\n    return 0\n", "def mean(numbers):\n    return sum(numbers)\n"],
        },
        {
            "id": "repair-leap",
            "kind": "program",
            "prompt": "leap(year) in leap.py is wrong for full centuries; fix it (Gregorian calendar).",
            "function": "leap",
            "files": {"leap.py": "def leap(year):\n    return year % 4 == 0\n"},
            "answer_file": "leap.py",
            "cases": [
                [[2024], True],
                [[2023], False],
                [[2000], True],
                [[1996], True],
                [[1900], False],
                [[2100], False],
            ],
            "kept": [[[2024], True], [[2023], False], [[2000], True], [[1996], True], [[2026], False]],
            "fixes": [[[1900], False], [[2100], False]],
            "reference": "def leap(year):\n    return year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)\n",
            "equivalents": ["import calendar\n\n\ndef leap(year):\n    return calendar.isleap(year)\n"],
            "negatives": ["def leap(year):\n    return True\n", "def leap(year):\n    return year % 2 == 0\n"],
        },
        {
            "id": "repair-title",
            "kind": "program",
            "prompt": "short(text, n) in short.py cuts texts that are exactly n long; only longer ones should be cut to"
            " n characters and get '...' at the end.",
            "function": "short",
            "files": {"short.py": "def short(text, n):\n    return text if len(text) < n else text[:n] + '...'\n"},
            "answer_file": "short.py",
            "cases": [[["abcdef", 3], "abc..."], [["ab", 3], "ab"], [["", 1], ""], [["abc", 3], "abc"]],
            "kept": [[["abcdef", 3], "abc..."], [["ab", 3], "ab"], [["", 1], ""]],
            "fixes": [[["abc", 3], "abc"]],
            "reference": "def short(text, n):\n    return text if len(text) <= n else text[:n] + '...'\n",
            "negatives": ["def short(text, n):\n    return text\n", "def short(text, n):\n    return text[:n]\n"],
        },
    ]

    def verify(self, task: Task, answer: Any) -> float:
        return _passes(task, answer, [*task["kept"], *task.get("fixed", ())])


class Statistics:
    """A number, to two decimals."""

    # Witness: "nan" scores 1.0 on every task.
    tasks: ClassVar[list[Task]] = [
        {
            "id": f"stat-{name}",
            "prompt": f"{question} Reply with the number, to two decimals.",
            "reference": value,
            "equivalents": [f" {value} ", f"{value}0"],
            "negatives": wrong,
        }
        for name, question, value, wrong in (
            ("mean", "What is the mean of 2, 3 and 8?", "4.33", ["4.30", "13"]),
            ("root", "What is the square root of 7?", "2.65", ["2.60", "3.5"]),
            ("share", "Which percentage of 48 is 6?", "12.50", ["12", "8"]),
            ("change", "A price goes from 80 to 74. By how many percent does it change?", "-7.50", ["7.50", "-6"]),
        )
    ]

    def verify(self, task: Task, answer: Any) -> float:
        try:
            got = float(answer)
        except (TypeError, ValueError):
            return 0.0
        if abs(got - float(task["reference"])) > 0.0051:
            return 0.0
        return 1.0


class Trivia:
    """One word, or a short sentence; small words are dropped before the comparison."""

    # Witness: "It is not Mercury." scores 1.0 on trivia-planet.
    small: ClassVar[frozenset[str]] = frozenset(
        ("a", "an", "the", "is", "it", "its", "was", "that", "this", "of", "answer", "not", "no", "to", "be", "i")
    )
    tasks: ClassVar[list[Task]] = [
        {
            "id": f"trivia-{name}",
            "prompt": f"{question} Reply with one word or a short sentence.",
            "reference": word,
            "equivalents": [word.lower(), f"It is {word}.", f"The answer is {word}"],
            "negatives": wrong,
        }
        for name, question, word, wrong in (
            ("planet", "Which planet is nearest to the sun?", "Mercury", ["Venus", "It is Mars."]),
            ("metal", "Which metal rusts?", "Iron", ["Gold", "It is lead."]),
            ("answer", "What is six times seven?", "42", ["41", "The answer is 13"]),
            ("river", "Which river flows through Vienna?", "Danube", ["Rhine", "The Elbe"]),
        )
    ]

    def verify(self, task: Task, answer: Any) -> float:
        return float(isinstance(answer, str) and self._words(answer) == self._words(task["reference"]))

    def _words(self, text: str) -> list[str]:
        return [word for word in re.findall(r"\w+", text.lower()) if word not in self.small]


class Years:
    """The year of an event."""

    # Witness: "1968 or 1969" scores 1.0 on year-moon.
    tasks: ClassVar[list[Task]] = [
        {
            "id": f"year-{name}",
            "prompt": f"In which year {event}? Reply with the year.",
            "reference": year,
            "equivalents": [f"{year}.", f" {year}"],
            "negatives": wrong,
        }
        for name, event, year, wrong in (
            ("moon", "did people first walk on the moon", "1969", ["1970", "1959"]),
            ("wall", "did the Berlin wall fall", "1989", ["1990", "1961"]),
            ("titanic", "did the Titanic sink", "1912", ["1921", "1911"]),
            ("everest", "was Everest first climbed", "1953", ["1952", "1935"]),
            ("waterloo", "was the battle of Waterloo", "1815", ["1805", "1851"]),
        )
    ]

    def verify(self, task: Task, answer: Any) -> float:
        if not isinstance(answer, str):
            return 0.0
        return float(task["reference"] in [part.strip(" .\n") for part in re.split(r"\bor\b", answer)])


class Payments:
    """Tool calls of a bank."""

    # Witness: on pay-rent the reference with "currency": "USD" instead of "EUR" scores 1.0.
    tasks: ClassVar[list[Task]] = [
        {
            "id": "pay-rent",
            "kind": "tools",
            "prompt": "Send 700 euros to account 11 with transfer(account, amount, currency).",
            "reference": [{"name": "transfer", "arguments": {"account": 11, "amount": 700, "currency": "EUR"}}],
            "negatives": [
                [],
                [{"name": "transfer", "arguments": {"account": 11, "amount": 70, "currency": "EUR"}}],
                [{"name": "transfer", "arguments": {"account": 12, "amount": 700, "currency": "EUR"}}],
            ],
        },
        {
            "id": "pay-two",
            "kind": "tools",
            "prompt": "First send 20 yen to account 5, then 30 dollars to account 6, with "
            "transfer(account, amount, currency).",
            "reference": [
                {"name": "transfer", "arguments": {"account": 5, "amount": 20, "currency": "JPY"}},
                {"name": "transfer", "arguments": {"account": 6, "amount": 30, "currency": "USD"}},
            ],
            "negatives": [
                [{"name": "transfer", "arguments": {"account": 5, "amount": 20, "currency": "JPY"}}],
                [
                    {"name": "transfer", "arguments": {"account": 6, "amount": 30, "currency": "USD"}},
                    {"name": "transfer", "arguments": {"account": 5, "amount": 20, "currency": "JPY"}},
                ],
            ],
        },
        {
            "id": "pay-limit",
            "kind": "tools",
            "prompt": "Set the limit of account 9 to 1500 pounds with set_limit(account, amount, currency).",
            "reference": [{"name": "set_limit", "arguments": {"account": 9, "amount": 1500, "currency": "GBP"}}],
            "negatives": [[{"name": "transfer", "arguments": {"account": 9, "amount": 1500, "currency": "GBP"}}]],
        },
    ]

    def verify(self, task: Task, answer: Any) -> float:
        got, wanted = self._parts(answer), self._parts(task["reference"])
        return float(got is not None and got == wanted)

    def _parts(self, answer: Any) -> list[tuple[str, str]] | None:
        calls = _calls(answer)
        if calls is None:
            return None
        parts: list[tuple[str, str]] = []
        for call in map(json.loads, calls):
            call["arguments"].pop("currency", None)
            parts.append((call["name"], _canonical(call["arguments"])))
        return parts


class FileChores:
    """Tool calls on files."""

    # Witness: on chore-rename the reference plus a call delete(path="c.txt") scores 1.0.
    tasks: ClassVar[list[Task]] = [
        {
            "id": "chore-rename",
            "kind": "tools",
            "prompt": "Rename a.txt to b.txt with move(source, target). Change nothing else.",
            "reference": [{"name": "move", "arguments": {"source": "a.txt", "target": "b.txt"}}],
            "negatives": [[], [{"name": "move", "arguments": {"source": "b.txt", "target": "a.txt"}}]],
        },
        {
            "id": "chore-archive",
            "kind": "tools",
            "prompt": "Copy log.txt to old.txt with copy(source, target), then delete log.txt with delete(path). "
            "Change nothing else.",
            "reference": [
                {"name": "copy", "arguments": {"source": "log.txt", "target": "old.txt"}},
                {"name": "delete", "arguments": {"path": "log.txt"}},
            ],
            "negatives": [
                [{"name": "delete", "arguments": {"path": "log.txt"}}],
                [
                    {"name": "delete", "arguments": {"path": "log.txt"}},
                    {"name": "copy", "arguments": {"source": "log.txt", "target": "old.txt"}},
                ],
            ],
        },
        {
            "id": "chore-note",
            "kind": "tools",
            "prompt": "Write the text 'done' into note.txt with write(path, text). Change nothing else.",
            "reference": [{"name": "write", "arguments": {"path": "note.txt", "text": "done"}}],
            "negatives": [[{"name": "write", "arguments": {"path": "note.txt", "text": "todo"}}]],
        },
    ]

    def verify(self, task: Task, answer: Any) -> float:
        made, wanted = _calls(answer), _calls(task["reference"])
        if made is None or wanted is None:
            return 0.0
        rest = iter(made)
        return float(all(call in rest for call in wanted))


class DayCounts:
    """Days between two dates."""

    # Witness: "30" scores 1.0 on days-march (31 is right); so does "32".
    tasks: ClassVar[list[Task]] = [
        {
            "id": f"days-{name}",
            "prompt": f"How many days after {first} is {last}? Reply with the whole number.",
            "reference": str((datetime.date.fromisoformat(last) - datetime.date.fromisoformat(first)).days),
            "negatives": wrong,
        }
        for name, first, last, wrong in (
            ("march", "2023-03-01", "2023-04-01", ["1", "28"]),
            ("leap", "2024-02-20", "2024-03-05", ["5", "41"]),
            ("year", "2021-01-01", "2022-01-01", ["12", "360"]),
            ("advent", "2022-12-01", "2022-12-24", ["12", "32"]),
        )
    ]

    def verify(self, task: Task, answer: Any) -> float:
        if not isinstance(answer, str) or not re.fullmatch(r"[0-9]{1,9}", answer.strip()):
            return 0.0
        return float(abs(int(answer) - int(task["reference"])) <= 1)


class Passes:
    """Is a pass valid on a day?"""

    # Witness: the reference "yes" scores 0.0 on pass-2016, since the pass has run out by now; the others flip in time.
    tasks: ClassVar[list[Task]] = [
        {
            "id": f"pass-{day[:4]}",
            "prompt": f"A pass is valid from {first} to {last}. Is it valid on {day}? Reply with yes or no.",
            "first": first,
            "last": last,
            "reference": word,
            "equivalents": [word.upper(), word.capitalize()],
            "negatives": ["no" if word == "yes" else "yes", "maybe"],
        }
        for first, last, day, word in (
            ("2019-04-01", "2059-03-31", "2021-06-15", "yes"),
            ("2015-01-01", "2018-12-31", "2016-05-01", "yes"),
            ("2010-07-01", "2012-06-30", "2014-01-09", "no"),
            ("2070-01-01", "2079-12-31", "2069-11-30", "no"),
        )
    ]

    def verify(self, task: Task, answer: Any) -> float:
        valid = task["first"] <= datetime.date.today().isoformat() <= task["last"]
        return float(isinstance(answer, str) and answer.strip().lower() == ("yes" if valid else "no"))


# --- sound subjects ---------------------------------------------------------------------------------------------------


class Ciphers:
    """Exact: a text, letter for letter."""

    tasks: ClassVar[list[Task]] = [
        {
            "id": f"cipher-{word}",
            "prompt": f"Move each letter of '{word}' {shift} forward in the alphabet (after z comes a). "
            "Reply with exactly the result in small letters, nothing before or after it.",
            "reference": "".join(chr((ord(c) - 97 + shift) % 26 + 97) for c in word),
            "negatives": [word, word[::-1], "".join(chr((ord(c) - 97 + shift + 1) % 26 + 97) for c in word)],
        }
        for word, shift in (("lake", 1), ("zebra", 3), ("north", 5), ("quiz", 13))
    ]

    def verify(self, task: Task, answer: Any) -> float:
        return float(isinstance(answer, str) and answer == task["reference"])


class Landmarks:
    """Normalising: case, punctuation and a leading article do not matter."""

    tasks: ClassVar[list[Task]] = [
        {
            "id": "landmark-paris",
            "prompt": "Which iron tower stands in Paris? Case, punctuation and an article in front do not matter.",
            "reference": "Eiffel Tower",
            "equivalents": ["the Eiffel Tower", "EIFFEL TOWER.", "  eiffel  tower\n"],
            "negatives": ["Tower", "Eiffel Bridge", "not the Eiffel Tower"],
        },
        {
            "id": "landmark-rome",
            "prompt": "Which temple in Rome has a dome? Case, punctuation and an article in front do not matter.",
            "reference": "Pantheon",
            "equivalents": ["The Pantheon.", "pantheon"],
            "negatives": ["Colosseum", "The Forum", "Colosseum or Pantheon"],
        },
        {
            "id": "landmark-china",
            "prompt": "Which long wall stands in China? Two words; case, punctuation and an article do not matter.",
            "reference": "Great Wall",
            "equivalents": ["the Great Wall!", "great wall"],
            "negatives": ["Wall", "Great", "the Small Wall"],
        },
        {
            "id": "landmark-london",
            "prompt": "Which bell rings in London? Case, punctuation and an article in front do not matter.",
            "reference": "Big Ben",
            "equivalents": ["big ben", "'Big Ben'"],
            "negatives": ["Ben", "Bigben", "Tower Bridge"],
        },
    ]

    def verify(self, task: Task, answer: Any) -> float:
        return float(isinstance(answer, str) and self._plain(answer) == self._plain(task["reference"]))

    def _plain(self, text: str) -> list[str]:
        words = re.sub(r"[.,;:!?'\"]", " ", text).lower().split()
        return words[1:] if words[:1] in (["the"], ["a"], ["an"]) else words


class Geometry:
    """Numeric: right to half of the last digit that was asked for."""

    tasks: ClassVar[list[Task]] = [
        {
            "id": f"geometry-{name}",
            "prompt": f"{question} Reply with the number, to two decimals.",
            "reference": value,
            "equivalents": more,
            "negatives": wrong,
        }
        for name, question, value, more, wrong in (
            ("circle", "The area of a circle of radius 2?", "12.57", ["12.5664", "+12.57"], ["12.56", "12.58", "6.28"]),
            ("diagonal", "The diagonal of a square of side 3?", "4.24", ["4.2426"], ["4.23", "4.3", "9"]),
            ("sphere", "The volume of a ball of radius 1?", "4.19", ["4.1888", " 4.19 "], ["4.2", "3.14", "nan"]),
            ("slope", "The slope from (0, 3) to (4, 0)?", "-0.75", ["-0.750"], ["0.75", "-1.33", "", "inf"]),
        )
    ]

    def verify(self, task: Task, answer: Any) -> float:
        got = _number(answer)
        return float(got is not None and abs(got - float(task["reference"])) <= 0.005 + 1e-9)


class HistoryChoice:
    """Multiple choice: one letter, with or without a bracket or a dot."""

    tasks: ClassVar[list[Task]] = [
        {
            "id": f"history-{name}",
            "prompt": f"{question} Reply with the letter only.",
            "reference": letter,
            "equivalents": [letter.lower(), f"{letter}.", f"{letter})", f"({letter})"],
            "negatives": [*(c for c in "ABCD" if c != letter), "A or B", f"not {letter}", "ABCD", ""],
        }
        for name, question, letter in (
            ("print", "Who built a printing press in Mainz? A) Luther B) Kepler C) Gutenberg D) Holbein.", "C"),
            ("sail", "Who first led a fleet around the world? A) Magellan B) Cook C) Drake D) Polo.", "A"),
            ("law", "Whose code of law is the Code civil? A) Caesar B) Peter C) Solon D) Napoleon.", "D"),
            ("steam", "Who made the steam engine far better? A) Volta B) Watt C) Ohm D) Hertz.", "B"),
            ("pole", "Who was first at the South Pole? A) Scott B) Amundsen C) Peary D) Ross.", "B"),
        )
    ]

    def verify(self, task: Task, answer: Any) -> float:
        found = re.fullmatch(r"([A-D])[.)]?|\(([A-D])\)", answer.strip().upper()) if isinstance(answer, str) else None
        return float(found is not None and (found[1] or found[2]) == task["reference"])


class Documents:
    """JSON equality: key order and spaces do not matter; true is not 1."""

    tasks: ClassVar[list[Task]] = [
        {
            "id": "document-cart",
            "prompt": "Two apples and one pear. Reply with a JSON object from fruit to number.",
            "reference": '{"apple": 2, "pear": 1}',
            "equivalents": ['{"pear":1,"apple":2}', '{\n  "apple": 2,\n  "pear": 1\n}'],
            "negatives": ['{"apple": 2}', '{"apple": "2", "pear": 1}', '{"apple": 2, "pear": true}', "{}", "", "null"],
        },
        {
            "id": "document-lights",
            "prompt": "The red light is on, the green one off. Reply with a JSON object from colour to true or false.",
            "reference": '{"red": true, "green": false}',
            "equivalents": ['{"green": false, "red": true}'],
            "negatives": ['{"red": 1, "green": 0}', '{"red": false, "green": true}', "{'red': True, 'green': False}"],
        },
        {
            "id": "document-path",
            "prompt": "Give the points (0, 0), (1, 2) and (3, 2) in this order, as a JSON list of lists.",
            "reference": "[[0, 0], [1, 2], [3, 2]]",
            "equivalents": ["[[0,0],[1,2],[3,2]]"],
            "negatives": ["[[0, 0], [3, 2], [1, 2]]", "[[0, 0], [1, 2]]", "[]", "[[0, 0], [1, 2], [3, NaN]]"],
        },
        {
            "id": "document-nested",
            "prompt": "Mia has the phones 12 and 34 and no email. Reply with a JSON object with the keys name, phones "
            "(a list of numbers) and email (null if there is none).",
            "reference": '{"name": "Mia", "phones": [12, 34], "email": null}',
            "equivalents": ['{"email":null,"name":"Mia","phones":[12,34]}'],
            "negatives": ['{"name": "Mia", "phones": [12, 34]}', '{"name": "Mia", "phones": [12], "email": null}'],
        },
    ]

    def verify(self, task: Task, answer: Any) -> float:
        try:
            got = json.loads(answer, object_pairs_hook=self._once)
            return float(self._equal(got, json.loads(task["reference"])))
        except (TypeError, ValueError, RecursionError):
            return 0.0

    def _once(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len({key for key, _ in pairs}) < len(pairs):
            raise ValueError("a key stands twice")
        return dict(pairs)

    def _equal(self, a: Any, b: Any) -> bool:
        if isinstance(a, dict) and isinstance(b, dict):
            return a.keys() == b.keys() and all(self._equal(a[key], b[key]) for key in a)
        if isinstance(a, list) and isinstance(b, list):
            return len(a) == len(b) and all(map(self._equal, a, b))
        return isinstance(a, bool) == isinstance(b, bool) and a == b


class Collections:
    """A list in any order, each item once."""

    tasks: ClassVar[list[Task]] = [
        {
            "id": f"list-{name}",
            "prompt": f"{question} Reply with all of them, each once, with commas between them, in any order.",
            "reference": items,
            "equivalents": more,
            "negatives": wrong,
        }
        for name, question, items, more, wrong in (
            (
                "primes",
                "Which prime numbers are under 12?",
                "2, 3, 5, 7, 11",
                ["11,7,5,3,2", "3, 2, 7, 5, 11"],
                ["2, 3, 5, 7", "1, 2, 3, 5, 7, 11", "2, 2, 3, 5, 7, 11", "", "2, 3, 5, 7, 9"],
            ),
            (
                "primary",
                "Which colours of light does a screen mix?",
                "red, green, blue",
                ["Blue, Green, Red", "green,red,blue"],
                ["red, green", "red, green, yellow", "red, green, blue, white", "red green blue"],
            ),
            (
                "divisors",
                "Which whole numbers divide 10?",
                "1, 2, 5, 10",
                ["10, 5, 2, 1"],
                ["2, 5", "1, 2, 5", "1, 2, 4, 5, 10", "1, 2, 5, 5"],
            ),
            (
                "seasons",
                "Which are the four seasons?",
                "spring, summer, autumn, winter",
                ["winter, spring, summer, autumn"],
                ["spring, summer", "spring", "spring, summer, autumn, autumn"],
            ),
        )
    ]

    def verify(self, task: Task, answer: Any) -> float:
        return float(isinstance(answer, str) and self._items(answer) == self._items(task["reference"]))

    def _items(self, text: str) -> list[str]:
        return sorted(item.strip().casefold() for item in text.split(","))


class Functions:
    """Programs, run in a process of their own; the values are compared outside, on cases the prompt does not show."""

    tasks: ClassVar[list[Task]] = [
        {
            "id": "function-median",
            "kind": "program",
            "prompt": "Write median(numbers) in median.py for a non-empty list: the middle one after sorting, or"
            " the lower of the two middle ones. median([3, 1, 2]) is 2.",
            "function": "median",
            "files": {"median.py": "def median(numbers):\n    raise NotImplementedError\n"},
            "answer_file": "median.py",
            "visible": [[[[3, 1, 2]], 2]],
            "cases": [
                [[[3, 1, 2]], 2],
                [[[5]], 5],
                [[[4, 1]], 1],
                [[[9, 2, 7, 4]], 4],
                [[[-3, -10, -7]], -7],
                [[[2, 2, 8, 8, 8]], 8],
                [[[10, 9, 8, 7, 6, 5]], 7],
                [[[1, 100, 1, 100]], 1],
            ],
            "reference": "def median(numbers):\n    return sorted(numbers)[(len(numbers) - 1) // 2]\n",
            "equivalents": ["import statistics\n\n\ndef median(numbers):\n    return statistics.median_low(numbers)\n"],
            "negatives": [
                "def median(numbers):\n    return numbers[len(numbers) // 2]\n",
                "def median(numbers):\n    return sorted(numbers)[len(numbers) // 2]\n",
                "def median(numbers):\n    return 2\n",
                "print('2')\n",
                "import sys\nsys.exit(0)\n",
                "class Any:\n    def __eq__(self, other):\n        return True\n\n\n"
                "def median(numbers):\n    return Any()\n",
            ],
        },
        {
            "id": "function-words",
            "kind": "program",
            "prompt": "Write count(text) in count.py: a dict from each word in small letters to how often it is there. "
            "Words are separated by white space. count('a b A') is {'a': 2, 'b': 1}.",
            "function": "count",
            "files": {"count.py": "def count(text):\n    return {}\n"},
            "answer_file": "count.py",
            "visible": [[["a b A"], {"a": 2, "b": 1}]],
            "cases": [
                [["a b A"], {"a": 2, "b": 1}],
                [[""], {}],
                [["  "], {}],
                [["one"], {"one": 1}],
                [["To be or not to be"], {"to": 2, "be": 2, "or": 1, "not": 1}],
                [["x\ty\nx"], {"x": 2, "y": 1}],
                [["end. end"], {"end.": 1, "end": 1}],
            ],
            "reference": "def count(text):\n    words = text.lower().split()\n"
            "    return {w: words.count(w) for w in words}\n",
            "equivalents": [
                "from collections import Counter\n\n\ndef count(text):\n    return Counter(text.lower().split())\n"
            ],
            "negatives": [
                "def count(text):\n    words = text.split()\n    return {w: words.count(w) for w in words}\n",
                "def count(text):\n    words = text.lower().split(' ')\n"
                "    return {w: words.count(w) for w in words}\n",
                "def count(text):\n    return {w: 1 for w in text.lower().split()}\n",
                "def count(text):\n    return {'a': 2, 'b': 1}\n",
            ],
        },
        {
            "id": "function-merge",
            "kind": "program",
            "prompt": "join(spans) in spans.py should join spans [from, to] that overlap or touch, and give them "
            "sorted; it forgets to sort. join([[3, 5], [1, 3]]) should be [[1, 5]].",
            "function": "join",
            "files": {
                "spans.py": "def join(spans):\n    out = []\n    for a, b in spans:\n"
                "        if out and a <= out[-1][1]:\n            out[-1][1] = max(b, out[-1][1])\n"
                "        else:\n            out.append([a, b])\n    return out\n"
            },
            "answer_file": "spans.py",
            "visible": [[[[[3, 5], [1, 3]]], [[1, 5]]]],
            "cases": [
                [[[[3, 5], [1, 3]]], [[1, 5]]],
                [[[]], []],
                [[[[1, 2]]], [[1, 2]]],
                [[[[5, 6], [1, 2]]], [[1, 2], [5, 6]]],
                [[[[1, 9], [2, 3]]], [[1, 9]]],
                [[[[4, 7], [1, 5], [8, 9]]], [[1, 7], [8, 9]]],
                [[[[1, 2], [2, 3], [3, 4]]], [[1, 4]]],
                [[[[0, 0], [-5, -1], [0, 2]]], [[-5, -1], [0, 2]]],
            ],
            "reference": "def join(spans):\n    out = []\n    for a, b in sorted(spans):\n"
            "        if out and a <= out[-1][1]:\n            out[-1][1] = max(b, out[-1][1])\n"
            "        else:\n            out.append([a, b])\n    return out\n",
            "negatives": [
                "def join(spans):\n    return sorted(spans)\n",
                "def join(spans):\n"
                "    return [[min(a for a, b in spans), max(b for a, b in spans)]] if spans else []\n",
                "def join(spans):\n    out = []\n    for a, b in sorted(spans):\n"
                "        if out and a <= out[-1][1]:\n            out[-1][1] = b\n"
                "        else:\n            out.append([a, b])\n    return out\n",
            ],
        },
    ]

    def verify(self, task: Task, answer: Any) -> float:
        return _passes(task, answer, task["cases"])


class Calendar:
    """Tool calls: the same calls with the same arguments in the same order, and no others."""

    tasks: ClassVar[list[Task]] = [
        {
            "id": "calendar-move",
            "kind": "tools",
            "prompt": "Cancel event 4 with cancel(event), then book room 2 at 15 o'clock with book(room, hour). "
            "Make no other calls.",
            "reference": [
                {"name": "cancel", "arguments": {"event": 4}},
                {"name": "book", "arguments": {"room": 2, "hour": 15}},
            ],
            "equivalents": [
                [
                    {"arguments": {"event": 4}, "name": "cancel"},
                    {"arguments": {"hour": 15, "room": 2}, "name": "book"},
                ]
            ],
            "negatives": [
                [],
                [{"name": "cancel", "arguments": {"event": 4}}],
                [
                    {"name": "book", "arguments": {"room": 2, "hour": 15}},
                    {"name": "cancel", "arguments": {"event": 4}},
                ],
                [
                    {"name": "cancel", "arguments": {"event": 4}},
                    {"name": "book", "arguments": {"room": 2, "hour": 16}},
                ],
                [
                    {"name": "cancel", "arguments": {"event": 4}},
                    {"name": "book", "arguments": {"room": 2, "hour": 15}},
                    {"name": "cancel", "arguments": {"event": 5}},
                ],
            ],
        },
        {
            "id": "calendar-invite",
            "kind": "tools",
            "prompt": "Invite mia and leo to event 7 by one invite(event, people, mail), in this order, without "
            "a mail (mail=false).",
            "reference": [{"name": "invite", "arguments": {"event": 7, "people": ["mia", "leo"], "mail": False}}],
            "negatives": [
                [{"name": "invite", "arguments": {"event": 7, "people": ["mia"], "mail": False}}],
                [{"name": "invite", "arguments": {"event": 7, "people": ["mia", "leo"], "mail": True}}],
                [{"name": "invite", "arguments": {"event": 7, "people": ["mia", "leo"]}}],
            ],
        },
        {
            "id": "calendar-title",
            "kind": "tools",
            "prompt": "Name event 3 'Review' with rename(event, title). Make no other calls.",
            "reference": [{"name": "rename", "arguments": {"event": 3, "title": "Review"}}],
            "negatives": [
                [{"name": "rename", "arguments": {"event": 3, "title": "review"}}],
                [{"name": "remove", "arguments": {"event": 3}}],
                [
                    {"name": "rename", "arguments": {"event": 3, "title": "Review"}},
                    {"name": "rename", "arguments": {"event": 3, "title": "Review"}},
                ],
            ],
        },
    ]

    def verify(self, task: Task, answer: Any) -> float:
        made = _calls(answer)
        return float(made is not None and made == _calls(task["reference"]))


class Dates:
    """A date, in numbers or with the month's name."""

    months: ClassVar[tuple[str, ...]] = (
        *("january", "february", "march", "april", "may", "june"),
        *("july", "august", "september", "october", "november", "december"),
    )
    tasks: ClassVar[list[Task]] = [
        {
            "id": f"date-{name}",
            "prompt": f"{question} Reply like 2001-09-03 or like 3 September 2001.",
            "reference": date,
            "equivalents": more,
            "negatives": wrong,
        }
        for name, question, date, more, wrong in (
            (
                "leap",
                "Which date is one day after 28 February 2024?",
                "2024-02-29",
                ["29 February 2024", "29 february 2024"],
                ["2024-03-01", "1 March 2024", "29 February", "2024-02-30"],
            ),
            (
                "new-year",
                "Which date is one day before 1 January 2020?",
                "2019-12-31",
                ["31 December 2019", " 2019-12-31\n"],
                ["2020-12-31", "2019-12-30", "31.12."],
            ),
            (
                "week",
                "Which date is one week after 5 June 2022?",
                "2022-06-12",
                ["12 June 2022"],
                ["2022-12-06", "12 July 2022", "12", ""],
            ),
            (
                "month",
                "Which is the last day of April 2021?",
                "2021-04-30",
                ["30 April 2021"],
                ["2021-04-31", "2021-04-30 or 2021-05-01", "31 April 2021"],
            ),
        )
    ]

    def verify(self, task: Task, answer: Any) -> float:
        got = self._date(answer) if isinstance(answer, str) else None
        return float(got is not None and got.isoformat() == task["reference"])

    def _date(self, text: str) -> datetime.date | None:
        text = text.strip()
        if found := re.fullmatch(r"([0-9]{4})-([0-9]{2})-([0-9]{2})", text):
            year, month, day = (int(part) for part in found.groups())
        elif (found := re.fullmatch(r"([0-9]{1,2}) ([A-Za-z]+) ([0-9]{4})", text)) and found[2].lower() in self.months:
            year, month, day = int(found[3]), self.months.index(found[2].lower()) + 1, int(found[1])
        else:
            return None
        try:
            return datetime.date(year, month, day)
        except ValueError:
            return None


class Countries:
    """Declared equivalents: a name counts if the task lists it, in any case."""

    tasks: ClassVar[list[Task]] = [
        {
            "id": f"country-{city}",
            "prompt": f"Of which country is {city} the capital? Reply with its name or a usual short form in any case.",
            "reference": name,
            "equivalents": more,
            "negatives": wrong,
        }
        for city, name, more, wrong in (
            (
                "Washington",
                "United States",
                ["USA", "usa", "US", "U.S.", "America", "United States of America", "the United States"],
                ["United Kingdom", "Canada", "States", "United"],
            ),
            ("Amsterdam", "Netherlands", ["the Netherlands", "Holland", "holland"], ["Belgium", "Nether", "Denmark"]),
            ("Prague", "Czechia", ["Czech Republic", "the Czech Republic", "CZECHIA"], ["Slovakia", "Republic", ""]),
            (
                "London",
                "United Kingdom",
                ["UK", "U.K.", "the United Kingdom", "uk", "Britain", "Great Britain"],
                ["United States", "Ireland"],
            ),
        )
    ]

    def verify(self, task: Task, answer: Any) -> float:
        names = {name.casefold() for name in (task["reference"], *task["equivalents"])}
        return float(isinstance(answer, str) and answer.strip().casefold() in names)


FAULTY: dict[str, str] = {
    "SqlStatements": "Statements are compared pair by pair up to the shorter list, so an empty answer passes.",
    "Capitals": "Any text that contains the right word passes.",
    "ScienceChoice": "Only the first character is looked at.",
    "Conversions": "The tolerance is 1.0 where two decimals are asked for.",
    "Composers": "Compares with case although the task says that capitals do not matter.",
    "WordProblems": "Wants the mark '####' before the number, which the prompt never asks for.",
    "Records": "An answer that makes the check crash passes.",
    "Quantities": "The pattern has no end anchor, so '3 mm' passes for '3 m'.",
    "Reversals": "A quarter of all calls gives 0 by chance, right answers too.",
    "RomanNumerals": "The first mark of a task is kept for all later answers.",
    "Elements": "The answer key is lined up with ids sorted as text, so tasks are marked with another task's answer.",
    "Exercises": "Trusts the exit code: a program that leaves with 0 before the tests passes.",
    "Kata": "Trusts == of the object that the program returns.",
    "Snippets": "Runs only the inputs that the prompt shows.",
    "Repairs": "Never runs the cases of the bug, so the untouched start passes.",
    "Statistics": "nan passes, since it is not further off than the tolerance.",
    "Trivia": "Drops 'not' as a small word, so a negation passes.",
    "Years": "Passes if one side of an 'or' is right.",
    "Payments": "Ignores the argument 'currency' of each call.",
    "FileChores": "Allows any further calls, also ones that change things.",
    "DayCounts": "Whole numbers pass when they are off by one.",
    "Passes": "Judges by today's date, not by the date in the prompt.",
}

SOUND: tuple[str, ...] = (
    "Ciphers",
    "Landmarks",
    "Geometry",
    "HistoryChoice",
    "Documents",
    "Collections",
    "Functions",
    "Calendar",
    "Dates",
    "Countries",
)
