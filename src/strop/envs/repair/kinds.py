"""Ten kinds of bugs, each a generator of small functions with one wrong line.

Invariant: what a case wants is computed here, from what the statement says, and never by running the reference; so a test
that runs start, reference and wrong fixes in the sandbox checks both against each other.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from random import Random
from typing import Any

from strop.envs.repair.names import NUMBER_WORDS, Pool, plural

Want = Mapping[str, Any]
"""`{"value": plain value}`, or `{"raises": name of the exception}`."""

Case = Sequence[tuple[Sequence[Any], Want]]
"""Calls on one freshly executed module, each (arguments, what it must give)."""


@dataclass(frozen=True, slots=True)
class Bug:
    """A function with one wrong line.

    Args:
        name: of the function.
        statement: what the task says.
        start: its lines.
        line: which is wrong, from 1.
        fix: what must stand there.
        wrong: fixes that do not work, the most tempting one first.
        visible, hidden: cases that the agent may run, and those that judge.
    """

    name: str
    statement: str
    start: Sequence[str]
    line: int
    fix: str
    wrong: Sequence[str]
    visible: Sequence[Case]
    hidden: Sequence[Case]


@dataclass(frozen=True, slots=True)
class Draw:
    """Random choices from a pool."""

    stream: Random
    pool: Pool

    def name(self) -> str:
        """A function's name: noun and suffix."""
        return "".join(self.stream.choice(self.pool.pairs))

    def nouns(self, count: int) -> list[str]:
        """Distinct nouns."""
        return self.stream.sample(self.pool.nouns, count)

    def number(self) -> int:
        """A number of two digits."""
        return self.stream.choice(self.pool.numbers)

    def digits(self, count: int) -> list[int]:
        """Distinct numbers from 1 to 9."""
        return self.stream.sample(range(1, 10), count)

    def list(self, count: int) -> list[int]:
        """A list of distinct numbers from 1 to 9."""
        return self.digits(count)


def one(args: Sequence[Any], value: Any) -> Case:
    """A case of one call that must give a value."""
    return [(args, {"value": value})]


def falsy_default(d: Draw) -> Bug:
    """`config.get(key) or 3` replaces a 0 that was meant."""
    name, key = d.name(), plural(d.nouns(1)[0])
    return falsy_default_of(name, key, d.stream.choice(list(NUMBER_WORDS)), d.number())


def falsy_default_of(name: str, key: str, default: int, other: int) -> Bug:
    """The task of a name, a key and a default; the lecture's is `retry_count`, `retries`, 3."""
    return Bug(
        name,
        f"zero should disable {key}, but the code returns {NUMBER_WORDS[default]}; keep the other cases",
        [f"def {name}(config):", f'    return config.get("{key}") or {default}'],
        2,
        f'    return {default} if config.get("{key}") is None else config["{key}"]',
        [
            f'    return config.get("{key}", {default})',
            f'    return config.get("{key}") or 0',
            f'    return config["{key}"] or {default}',
        ],
        [one([{key: 0}], 0), one([{key: None}], default), one([{key: 2}], 2)],
        [
            one([{}], default),
            one([{key: None}], default),
            one([{key: 0}], 0),
            one([{key: 2}], 2),
            one([{key: other}], other),
        ],
    )


def off_by_one(d: Draw) -> Bug:
    """A range that ends one too early or too late."""
    name, nouns = d.name(), plural(d.nouns(1)[0])
    first, last = d.stream.choice([("first", "last"), ("low", "high"), ("start", "stop")])
    includes, listed = d.stream.random() < 0.5, d.stream.random() < 0.5
    far, near = last, f"{last} + 1"
    shape = f"    return list(range({first}, {{}}))" if listed else f"    return {{}} - {first}"
    wrong, right = (far, near) if includes else (near, far)
    tempting = [f"{last} + 2", f"{last} - 1"] if includes else [f"{last} - 1", f"{last} + 2"]
    shift = int(includes)

    def want(a: int, b: int) -> Any:
        return list(range(a, b + shift)) if listed else b + shift - a

    low, *rest = d.digits(3)
    pairs = [(low, low + 2), (low, low)] + [(n, n + step) for n, step in zip(rest, (1, 3), strict=True)]
    cases = [one([a, b], want(a, b)) for a, b in pairs]
    return Bug(
        name,
        f"{last} must be {'one' if includes else 'none'} of the {nouns}",
        [f"def {name}({first}, {last}):", shape.format(wrong)],
        2,
        shape.format(right),
        [shape.format(text) for text in tempting],
        cases[:2],
        cases,
    )


def comparison(d: Draw) -> Bug:
    """`>` where `>=` is meant, and the like."""
    name, noun, limit = d.name(), d.nouns(1)[0], d.number()
    above, includes = d.stream.random() < 0.5, d.stream.random() < 0.5
    strict, loose = (">", ">=") if above else ("<", "<=")
    wrong, right = (strict, loose) if includes else (loose, strict)
    tempting = "==" if includes else "!="

    def want(value: int) -> bool:
        return (value == limit and includes) or (value > limit if above else value < limit)

    inside, outside = (limit + 1, limit - 1) if above else (limit - 1, limit + 1)
    line = f"    return {noun} {{}} {limit}".format
    far = d.digits(2)
    return Bug(
        name,
        f"{limit} itself must give {includes}",
        [f"def {name}({noun}):", line(wrong)],
        2,
        line(right),
        [line(tempting), *(line(sign) for sign in (("<", "<=") if above else (">", ">=")))],
        [one([limit], want(limit)), one([inside], want(inside)), one([outside], want(outside))],
        [one([v], want(v)) for v in (limit, inside, outside, limit + far[0], limit - far[1])],
    )


def none_check(d: Draw) -> Bug:
    """A function that cannot take None."""
    name, values, number = d.name(), plural(d.nouns(1)[0]), d.number()
    function = d.stream.choice(["len", "sum", "sorted"])
    compute: Callable[[list[int]], Any] = {"len": len, "sum": sum, "sorted": sorted}[function]
    lists = [d.list(2), [], d.list(3)]
    cases = [one([None], number), *(one([v], compute(v)) for v in lists)]
    return Bug(
        name,
        f"None must give {number}; keep the other cases",
        [f"def {name}({values}):", f"    return {function}({values})"],
        2,
        f"    return {number} if {values} is None else {function}({values})",
        [
            f"    return {function}({values}) if {values} else {number}",
            f"    return {function}({values} or [])",
            f"    return {function}({values}) or {number}",
        ],
        [cases[0], cases[1], cases[2]],
        cases,
    )


def wrong_key(d: Draw) -> Bug:
    """A dictionary is read at another key than the statement says."""
    name, number = d.name(), d.number()
    held, right, wrong, tempting = d.nouns(4)
    line = f'    return {held}["{{}}"] + {number}'.format
    values = [dict(zip((right, wrong, tempting), d.digits(3), strict=True)) for _ in range(3)]
    cases = [one([value], value[right] + number) for value in values]
    return Bug(
        name,
        f"it must read {right}",
        [f"def {name}({held}):", line(wrong)],
        2,
        line(right),
        [line(tempting), line(held)],
        cases[:1],
        cases,
    )


def swapped_arguments(d: Draw) -> Bug:
    """Two arguments stand the wrong way round."""
    name, (a, b) = d.name(), d.nouns(2)
    function = d.stream.choice(["pow", "divmod"])

    def compute(x: int, y: int) -> Any:
        return x**y if function == "pow" else [x // y, x % y]

    line = f"    return {'list(divmod({}, {}))' if function == 'divmod' else 'pow({}, {})'}".format
    pairs = [tuple(d.digits(2)) for _ in range(3)]
    cases = [one([x, y], compute(x, y)) for x, y in pairs if compute(x, y) != compute(y, x)]
    cases = cases or [one([7, 2], compute(7, 2))]
    return Bug(
        name,
        f"{a} must come first in {function}",
        [f"def {name}({a}, {b}):", line(b, a)],
        2,
        line(a, b),
        [line(a, a), line(b, b)],
        cases[:1],
        cases,
    )


def mutable_default(d: Draw) -> Bug:
    """A list or dictionary as default value that is shared by all calls."""
    name, (noun, key) = d.name(), d.nouns(2)
    values = plural(noun)
    x, y, z = d.digits(3)
    if d.stream.random() < 0.5:
        start = [f"def {name}({noun}, {values}=[]):", f"    {values}.append({noun})", f"    return {values}"]
        fix, tempting = f"    {values} = {values} + [{noun}]", f"    {values} = [{noun}]"
        anew = [([x], {"value": [x]}), ([y], {"value": [y]})]
        given = one([x, [y, z]], [y, z, x])
    else:
        start = [f"def {name}({key}, {noun}, {values}={{}}):", f"    {values}[{key}] = {noun}", f"    return {values}"]
        fix, tempting = f"    {values} = {{**{values}, {key}: {noun}}}", f"    {values} = {{{key}: {noun}}}"
        anew = [(["a", x], {"value": {"a": x}}), (["b", y], {"value": {"b": y}})]
        given = one(["a", x, {"b": y}], {"b": y, "a": x})
    return Bug(
        name,
        f"each call without {values} must start anew",
        start,
        2,
        fix,
        [tempting, f"    {values} = {values}"],
        [anew, given],
        [given, anew, [*anew, given[0]]],
    )


def early_return(d: Draw) -> Bug:
    """A return inside the loop."""
    name, noun, number = d.name(), d.nouns(1)[0], d.number()
    values = plural(noun)
    operation = d.stream.choice([f"total += {noun}", "total += 1", f"total = max(total, {noun})"])

    def compute(v: list[int]) -> int:
        if "max" in operation:
            return max([number, *v])
        return number + (len(v) if operation.endswith("1") else sum(v))

    big = [n + number for n in d.list(2)]
    lists = [d.list(3), [1, *big], d.list(2), [*big, 2, number + 12]]
    cases = [one([v], compute(v)) for v in lists]
    return Bug(
        name,
        f"all {values} must count, not only the first",
        [
            f"def {name}({values}):",
            f"    total = {number}",
            f"    for {noun} in {values}:",
            f"        {operation}",
            "        return total",
        ],
        5,
        "    return total",
        ["        break", "        continue"],
        cases[:2],
        [*cases, one([[]], number)],
    )


def accumulator_start(d: Draw) -> Bug:
    """A sum or product that begins at the wrong number."""
    name, noun, number = d.name(), d.nouns(1)[0], d.number()
    values, product = plural(noun), d.stream.random() < 0.5

    def want(v: list[int]) -> int:
        return number * prod(v) if product else number + sum(v)

    lists = [[], d.list(2), d.list(3)]
    cases = [one([v], want(v)) for v in lists]
    wrong, tempting = (0, 1) if product else (1, 0)
    return Bug(
        name,
        f"no {values} must give {number}",
        [
            f"def {name}({values}):",
            f"    total = {wrong}",
            f"    for {noun} in {values}:",
            f"        total {'*=' if product else '+='} {noun}",
            "    return total",
        ],
        2,
        f"    total = {number}",
        [f"    total = {tempting}", f"    total = {number + 1}"],
        cases[:2],
        cases,
    )


def lost_case(d: Draw) -> Bug:
    """A table without one of its cases."""
    name, (held, lost, other, more) = d.name(), d.nouns(4)
    a, b = d.digits(2)
    number = d.number()
    line = f'    return {{{{"{other}": {a}, "{more}": {b}{{}}}}}}[{held}]'.format
    return Bug(
        name,
        f"{lost} must give {number}; keep the other cases",
        [f"def {name}({held}):", line("")],
        2,
        line(f', "{lost}": {number}'),
        [f'    return {{"{other}": {a}, "{more}": {b}}}.get({held}, {number})', line(f', "{held}": {number}')],
        [one([lost], number), one([other], a)],
        [one([lost], number), one([other], a), one([more], b), [(["none"], {"raises": "KeyError"})]],
    )


KINDS: dict[str, Callable[[Draw], Bug]] = {
    "falsy default": falsy_default,
    "off by one": off_by_one,
    "comparison": comparison,
    "none check": none_check,
    "wrong key": wrong_key,
    "mutable default": mutable_default,
    "early return": early_return,
    "accumulator start": accumulator_start,
    "swapped arguments": swapped_arguments,
    "lost case": lost_case,
}
HELD_OUT = ("swapped arguments", "lost case")
"""Kinds that are in no training task."""
