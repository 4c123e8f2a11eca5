"""What is made from a program: rewrites that behave the same, mutants, inputs; held against each other in the sandbox."""

import ast
import asyncio
from random import Random

import pytest

from strop.audit.behaviour import alike, behaviour, exactly, outcomes
from strop.audit.exam import Exam
from strop.audit.fuzz import check_fuzz
from strop.audit.hostile import cheats, stubbed
from strop.audit.inputs import Case, asserted, cases_of, inside, mutated, mutations
from strop.audit.local import Local
from strop.audit.mutants import mutants
from strop.audit.rewrites import rewrites
from strop.audit.subject import defines, read_item
from strop.audit.twins import honeypots, twin
from strop.core.errors import UsageError
from strop.core.sandbox import Outcome
from strop.core.task import Task

PROGRAMS = {
    "loop": (
        "def total(values):\n    out = 0\n    for value in values:\n        if value is None:\n            continue\n"
        "        out += value\n    return out\n",
        [Case("total", ([1, None, 5],)), Case("total", ([],)), Case("total", (["x"],))],
    ),
    "branches": (
        "def size(x):\n    y = abs(x)\n    if y > 10:\n        return 'big' if x is not None else 'none'\n    elif y == 0:\n"
        "        return 'zero'\n    else:\n        return y\n",
        [Case("size", (value,)) for value in (11, -11, 0, 3, 10, "a")],
    ),
    "errors": (
        "def half(n):\n    try:\n        if n % 2:\n            raise ValueError(f'{n} is odd')\n        return n // 2\n"
        "    except TypeError as problem:\n        return type(problem).__name__\n",
        [Case("half", (value,)) for value in (4, 3, "x", None)],
    ),
    "inner": (
        "def outer(n):\n    found = []\n    def add(k):\n        found.append(k)\n        return len(found)\n"
        "    return [add(k) for k in range(n)]\n",
        [Case("outer", (value,)) for value in (0, 3)],
    ),
    "yields": (
        "def run(n):\n    def each():\n        for k in range(n):\n            yield k\n    return list(each())\n",
        [Case("run", (value,)) for value in (0, 4)],
    ),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_rewrite_behaves_as_the_original_does(name: str) -> None:
    program, cases = PROGRAMS[name]
    wanted = asyncio.run(outcomes(program, cases))
    made = rewrites(program)
    assert len(made) >= 4
    for rewrite in made:
        assert rewrite.text != program
        found = asyncio.run(outcomes(rewrite.text, cases))
        assert all(map(alike, found, wanted)), rewrite.name
    broken = program.replace("return", "return not", 1)
    assert not all(map(alike, asyncio.run(outcomes(broken, cases)), wanted))


def test_mutants_parse_differ_and_are_drawn_alike_each_time() -> None:
    program = PROGRAMS["branches"][0]
    made = mutants(program, Random(0), 100)
    texts = [text for _, text in made]
    assert len(set(texts)) == len(texts) > 10
    for text in texts:
        assert ast.unparse(ast.parse(text)) != ast.unparse(ast.parse(program))
    assert mutants(program, Random(1), 5) == mutants(program, Random(1), 5)
    assert any("> 10" not in text and ">= 10" in text for text in texts)


@pytest.mark.parametrize("value", [3, True, 1.5, "abc", [1, 2], (1, 2), {"a": 1}])
def test_mutations_keep_the_type_and_make_other_values(value: object) -> None:
    made = mutations(value)
    assert made
    assert all(type(other) is type(value) for other in made)
    assert any(other != value for other in made)


def test_an_input_is_in_the_domain_only_within_what_was_seen() -> None:
    cases = [Case("f", (1, "ab")), Case("f", (9, "b")), Case("f", (None, "a"))]
    assert inside(Case("f", (5, "ba")), cases)
    assert inside(Case("f", (None, "b")), cases)
    for wrong in ((10, "a"), (0, "a"), (True, "a"), (5, "abc"), (5, "c"), (5,), (2.0, "a")):
        assert not inside(Case("f", wrong), cases), wrong
    assert not inside(Case("g", (5, "a")), cases)
    assert not inside(Case("f", (5, "a")), [])


def test_cases_are_read_in_all_their_forms() -> None:
    task = {
        "id": "a",
        "prompt": "so that\nassert f(7) == 8\nholds",
        "reference": "def f(x):\n    return x + 1\n",
        "cases": [[[1], 2], {"args": [3], "expected": 4}, {"input": 5, "output": 6}, "assert f(0) == 1"],
        "hidden": [[[[2], {"value": 3}]], [[["a"], {"raises": "TypeError"}]]],
        "files": {"tests/test_f.py": "def test():\n    assert f(10) == 11\n", "notes.py": "assert f(99) == 0"},
    }
    found = cases_of(read_item(task, 0))
    assert {(case.args[0], case.expected) for case in found} == {
        (1, 2),
        (3, 4),
        (5, 6),
        (0, 1),
        (2, 3),
        (10, 11),
        (7, 8),
    }
    assert {case.args[0] for case in found if case.visible} == {7, 10}
    assert asserted("assert f(x) == 1\nassert g() is None\nself.assertEqual(f([1]), 2)") == [
        Case("g", (), None),
        Case("f", ([1],), 2),
    ]


def test_new_inputs_are_new_and_near() -> None:
    cases = [Case("f", (4, "x"))]
    made = mutated(cases, Random(0))
    assert Case("f", (5, "x")) in made
    assert cases[0] not in made
    assert len({repr(case) for case in made}) == len(made)


def test_programs_are_compared_by_value_and_type() -> None:
    assert exactly([1, (2.0, {"a": None})], [1, (2.0, {"a": None})])
    assert exactly(float("nan"), float("nan"))
    for one, other in ((1, True), (1, 1.0), ([1], (1,)), ({"a": 1}, {"a": 1.0}), ([1], [1, 2])):
        assert not exactly(one, other)
    assert alike(Outcome("raised", text="ValueError: a"), Outcome("raised", text="ValueError: b"))
    assert not alike(Outcome("raised", text="ValueError: a"), Outcome("raised", text="TypeError: a"))


def test_a_difference_is_told_with_the_input_in_the_domain_first() -> None:
    async def look() -> list[tuple[object, ...]]:
        around = await behaviour("def f(x):\n    return x if x < 5 else 9\n", [Case("f", (k,)) for k in (9, 1, 6, "a")])
        assert [case.args[0] for case in around.cases] == [9, 1, 6]
        found = await around.differences("def f(x):\n    return x\n", lambda case: case.args[0] == 6)
        return [(case.args[0], want.value, got.value) for case, want, got in found]

    assert asyncio.run(look()) == [(6, 9, 6)]


def test_hostile_programs_do_not_compute_the_answer() -> None:
    program = "def f(x):\n    return x + 1\n"
    item = read_item({"id": "a", "prompt": "p", "reference": program}, 0)
    for attack in cheats(program, item):
        text = attack.program or ""
        if defines(text):
            found = asyncio.run(outcomes(text, [Case("f", (1,))]))
            assert (found[0].kind, found[0].value) != ("value", 2), attack.name
    assert asyncio.run(outcomes(program, [Case("f", (1,))]))[0].value == 2
    assert stubbed(program, "return 0") == "def f(x):\n    return 0\n\n"


def test_fuzzing_suggests_a_test_that_right_programs_pass() -> None:
    program = "def f(x):\n    return x if x < 7 else 7\n"
    task = {"id": "a", "kind": "program", "prompt": "p", "reference": program, "cases": [[[0], 0], [[20], 7]]}
    task["equivalents"] = ["def f(x):\n    return min(x, 7)\n"]
    subject = Local("mine", [task], lambda task, answer: 1.0)
    exam = Exam(subject, subject.items)
    exam.accepted.append((subject.items[0], "mutant", "def f(x):\n    return x if x < 8 else 7\n"))
    asyncio.run(check_fuzz(exam))
    assert [f for f in exam.findings.values() if f.kind == "confirmed"] == []  # they differ nowhere
    exam.accepted.append((subject.items[0], "mutant", "def f(x):\n    return x if x < 3 else 7\n"))
    asyncio.run(check_fuzz(exam))
    [found] = [f for f in exam.findings.values() if f.kind == "confirmed"]
    argument = int(found.suggestion.split("f(")[1].split(")")[0])
    assert found.suggestion == f"add the test: assert f({argument}) == {argument}"
    assert 3 <= argument < 7


def test_a_twin_flips_one_expected_value() -> None:
    assert twin({"answer": "4", "prompt": "p"}) == {"answer": "5"}
    assert twin({"answer": "4", "cases": [[[1], 2], [[2], 3]]}) == {"cases": [[[1], 3], [[2], 3]]}
    assert twin({"hidden": [[[[1], {"value": True}]]]}) == {"hidden": [[[[1], {"value": False}]]]}
    assert twin({"prompt": "p"}) == {}
    assert twin({"reference": "def f():\n    return 1\n"}) == {}


def test_honeypots_are_mixed_in_by_their_share_and_are_tagged() -> None:
    tasks = [Task(f"t{k}", {"answer": str(k)}) for k in range(9)]
    mixed = honeypots(tasks, 0.1, Random(0))
    [honeypot] = [task for task in mixed if "honeypot" in task.tags]
    assert len(mixed) == 10
    assert [task for task in mixed if task is not honeypot] == tasks
    source = next(task for task in tasks if honeypot.id == f"{task.id}-honeypot")
    assert honeypot.data["answer"] == str(int(source.data["answer"]) + 1)
    assert honeypots(tasks, 0.0, Random(0)) == tasks
    for share in (1.0, -0.1):
        with pytest.raises(UsageError, match="from 0 to below 1"):
            honeypots(tasks, share, Random(0))
    with pytest.raises(UsageError, match="hold an expected value"):
        honeypots([Task("a", {})], 0.5, Random(0))
