"""Importance ratios over up to 50,000 tokens: `python -m benchmarks.ratios [--run RUN ...] [--write docs/ratios.md]`.

Invariant: every ratio, clip and logged number comes from the functions that the learner calls, in float32 as it has them;
random streams are named by length and chunk, so all laws see the same draws and a second call gives the same page.
`--write` replaces the blocks between `<!-- made: NAME -->` and `<!-- end -->` and the picture beside the page; the block of
runs is left as it is without `--run`.
"""

import argparse
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from strop.algorithms import ALGORITHMS
from strop.core.algorithm import Clip, GrowingClip, PrefixRatio
from strop.core.errors import UsageError
from strop.core.metrics import EffectiveShare, Mean, Metrics, combine, values
from strop.core.seeds import generator
from strop.objective.diagnose import policy_metrics
from strop.objective.parts import Places, importance_ratio, log_ratio, surrogate, unit_log_ratio
from strop.watch.run_folder import RunFolder

ROWS = {"token": "grpo", "prefix": "ctpo", "trajectory": "full_ratio", "sequence": "gspo"}
"""Each ratio with the row of the table whose clip it is shown with."""
LENGTHS = {1: 20_000, 100: 5_000, 2_500: 600, 50_000: 80}
"""Tokens of a trajectory: trajectories drawn."""
LONGEST = max(LENGTHS)
PLACES = (1, 4, 8, *(t for t in LENGTHS if t > 8))
"""Tokens at which a run's trajectories are read, as far as they go."""
SEED, CHUNK = 11, 1_000_000
FEWEST = 20
"""Trajectories that a place of a run must have to be shown."""


@dataclass(frozen=True, slots=True)
class Law:
    """Independent token log-ratios, normal with deviation `size`.

    With drift the mean is -size^2 / 2, so that E r = 1 as for the ratio of two policies at tokens drawn from the old one;
    without it the mean is 0 and E r > 1, which no two policies give.
    """

    size: float
    drift: bool

    @property
    def mean(self) -> float:
        """Mean of a token's log-ratio."""
        return -(self.size**2) / 2 if self.drift else 0.0

    @property
    def name(self) -> str:
        """Name of its block in the page."""
        return f"{'drift' if self.drift else 'still'} {self.size}"


LAWS = tuple(Law(size, drift) for size in (0.05, 0.01) for drift in (True, False))


@dataclass(frozen=True, slots=True)
class Tokens:
    """Log-probabilities of sampled tokens under two policies; float32 [N], with their places."""

    logp: torch.Tensor
    anchor: torch.Tensor
    places: Places

    @property
    def last(self) -> torch.Tensor:
        """Indices of the last token of each trajectory."""
        return torch.nonzero(self.places.order == self.places.lengths[self.places.trajectory] - 1).flatten()


@dataclass(frozen=True, slots=True)
class Units:
    """A ratio at every token.

    Args:
        clip: of its row.
        tokens: the tokens.
        logs: logarithms before the clamp; float32 [N].
        ratio: what the loss takes; float32 [N].
    """

    clip: Clip
    tokens: Tokens
    logs: torch.Tensor
    ratio: torch.Tensor


@dataclass(frozen=True, slots=True)
class Sample:
    """Ratios at some tokens, one of each trajectory.

    Args:
        logs: logarithms of the ratios before the clamp; [n].
        metrics: what the learner would log of these tokens, and the shares that clipping takes: `below` of negative
            advantages, `above` of positive ones.
    """

    logs: np.ndarray
    metrics: Metrics

    def __add__(self, other: "Sample") -> "Sample":
        return Sample(np.concatenate([self.logs, other.logs]), combine([self.metrics, other.metrics]))

    @property
    def effective(self) -> float:
        """Effective share of the ratios as they would be without the clamp."""
        weights = np.exp(self.logs - self.logs.max())
        share = EffectiveShare(float(weights.sum()), float((weights**2).sum()), float(len(weights))).value
        assert share is not None
        return share


@dataclass(frozen=True, slots=True)
class Measured:
    """What a law gives.

    Args:
        samples: by ratio and tokens of the trajectory, at its last token.
        logged: by ratio, the metrics of a batch of the longest trajectories over all their tokens, half of the trajectories
            with a positive advantage.
    """

    law: Law
    samples: Mapping[str, Mapping[int, Sample]]
    logged: Mapping[str, Mapping[str, float | None]]

    def growth(self, ratio: str) -> float:
        """Exponent k of deviation ~ t^k, fitted in logarithms over all lengths."""
        spreads = [float(sample.logs.std()) for sample in self.samples[ratio].values()]
        return float(np.polyfit(np.log(list(LENGTHS)), np.log(spreads), 1)[0])


def tokens_of(logs: np.ndarray) -> Tokens:
    """Trajectories of equal length with these token log-ratios; [trajectories, tokens].

    Old log-probabilities are -1/2 minus an exponential draw: of all sizes, so that rounding is that of real ones.
    """
    count, length = logs.shape
    trajectory = torch.arange(count).repeat_interleave(length)
    places = Places(
        trajectory, torch.arange(length).repeat(count), torch.zeros_like(trajectory), torch.full((count,), length)
    )
    sure = generator((SEED, length)).standard_exponential(count * length, dtype=np.float32)
    anchor = -0.5 - torch.from_numpy(sure)
    return Tokens((anchor + torch.from_numpy(logs.reshape(-1))).float(), anchor, places)


def drawn(law: Law, length: int, chunk: int, count: int) -> np.ndarray:
    """Token log-ratios of a law; float64 [count, length]."""
    normal = generator((SEED, length, chunk)).standard_normal((count, length), dtype=np.float32)
    return law.mean + law.size * normal.astype(np.float64)


def chunks(law: Law, length: int) -> Iterable[Tokens]:
    """All trajectories of a length, at most a million tokens at a time."""
    most = max(1, CHUNK // length)
    for number, start in enumerate(range(0, LENGTHS[length], most)):
        yield tokens_of(drawn(law, length, number, min(most, LENGTHS[length] - start)))


def units_of(name: str, tokens: Tokens) -> Units:
    """The ratio of that name at every token."""
    row = ALGORITHMS[ROWS[name]]
    logs = unit_log_ratio(row.ratio, log_ratio(tokens.logp, tokens.anchor), tokens.places)
    ratio = importance_ratio(row.ratio, tokens.logp, tokens.anchor, tokens.places)
    assert ratio is not None
    return Units(row.clip, tokens, logs, ratio)


def clipped(units: Units, at: torch.Tensor, advantage: torch.Tensor) -> torch.Tensor:
    """Which of some tokens the clip takes from the gradient, or bounds; bool [n]."""
    tokens = units.tokens
    logp, anchor, order = tokens.logp[at], tokens.anchor[at], tokens.places.order[at]
    return surrogate(units.clip, units.ratio[at], logp, advantage, order, anchor)[1]


def sample(units: Units, at: torch.Tensor) -> Sample:
    """The ratio at some tokens, and what its clip does there."""
    logp, anchor, one = units.tokens.logp[at], units.tokens.anchor[at], torch.ones(len(at))
    below, above = clipped(units, at, -one), clipped(units, at, one)
    shares = {"below": Mean(float(below.sum()), float(len(at))), "above": Mean(float(above.sum()), float(len(at)))}
    metrics = policy_metrics(logp, anchor, one, units.ratio[at], above)
    return Sample(units.logs[at].double().numpy(), {**metrics, **shares})


def logged(units: Units) -> Metrics:
    """What the learner logs of a whole batch; every other trajectory has advantage -1, the others 1."""
    tokens = units.tokens
    advantage = 1.0 - 2.0 * (tokens.places.trajectory % 2).float()
    taken = clipped(units, torch.arange(len(advantage)), advantage)
    return policy_metrics(tokens.logp, tokens.anchor, advantage, units.ratio, taken)


def measure(law: Law) -> Measured:
    """Draw the law's trajectories of all lengths and read every ratio."""
    samples: dict[str, dict[int, Sample]] = {name: {} for name in ROWS}
    batches: dict[str, list[Metrics]] = {name: [] for name in ROWS}
    for length in LENGTHS:
        for tokens in chunks(law, length):
            for name in ROWS:
                units = units_of(name, tokens)
                found = sample(units, tokens.last)
                before = samples[name].get(length)
                samples[name][length] = found if before is None else before + found
                if length == LONGEST:
                    batches[name].append(logged(units))
    return Measured(law, samples, {name: values(combine(parts)) for name, parts in batches.items()})


def outside(law: Law, clip: GrowingClip, t: int) -> tuple[float, float]:
    """Exact shares of prefix products below and above the growing bounds at token t: two tails of a normal."""
    width, spread, mean = t**clip.power, law.size * math.sqrt(t), law.mean * t
    return tail((clip.low * width + mean) / spread), tail((clip.high * width - mean) / spread)


def tail(x: float) -> float:
    """P(normal > x)."""
    return math.erfc(x / math.sqrt(2)) / 2


# --- precision


@dataclass(frozen=True, slots=True)
class Errors:
    """Largest errors of a prefix log-ratio of 50,000 tokens, over 50 places.

    Args:
        sums: the learner's, against the exact sum of the float32 log-ratios.
        running: of a float32 running sum, against the same.
        rounding: the learner's, against the exact sum before log-probabilities were rounded to float32.
        spacing: distance of neighbouring float32 numbers at the largest value.
    """

    sums: float
    running: float
    rounding: float
    spacing: float


def precision(law: Law) -> Errors:
    """Errors of one trajectory of the law; exact sums by `math.fsum`."""
    true = drawn(law, LONGEST, 0, 1)
    tokens = tokens_of(true)
    each = log_ratio(tokens.logp, tokens.anchor)
    prefix = unit_log_ratio(PrefixRatio(), each, tokens.places).double().numpy()
    running = np.cumsum(each.numpy(), dtype=np.float32).astype(np.float64)
    ends = range(1_000, LONGEST + 1, 1_000)
    rounded = np.array([math.fsum(each[:end].tolist()) for end in ends])
    exact = np.array([math.fsum(true[0, :end].tolist()) for end in ends])
    at = np.array(ends) - 1
    return Errors(
        float(np.abs(prefix[at] - rounded).max()),
        float(np.abs(running[at] - rounded).max()),
        float(np.abs(prefix[at] - exact).max()),
        float(np.spacing(np.float32(np.abs(rounded).max()))),
    )


# --- runs


def trained(folder: Path) -> dict[int, Tokens]:
    """Trajectories of a run's saved updates by lag: batches learned between the sampling and the step of the update.

    Log-probabilities are those of the last update that held the row, before its step. Trajectories with an unknown one
    (demonstrations, skipped updates) are left out; so are those with tokens of several versions.

    Raises:
        UsageError: no saved update has such a trajectory.
    """
    home = RunFolder.open(folder)
    found: dict[int, list[tuple[np.ndarray, np.ndarray]]] = {}
    for step, _ in home.updates():
        update = home.update(step)
        owner = np.repeat(np.arange(len(update["row_length"])), update["row_length"])
        chosen = np.flatnonzero(update["sampled"])
        names = np.stack([update["row_draw"], update["row_member"]])[:, owner[chosen]]
        now = update.get("current_logp", np.full(len(owner), np.nan, np.float32))
        _, member = np.unique(names, axis=1, return_inverse=True)
        for index in range(int(member.max(initial=-1)) + 1):
            mine = chosen[member == index]  # rows of a trajectory are saved in the order of its tokens
            versions = np.unique(update["versions"][mine])
            pair = now[mine], update["behaviour_logp"][mine]
            if len(versions) == 1 and np.isfinite(pair).all():
                found.setdefault(step - 1 - int(versions[0]), []).append(pair)
    if not found:
        raise UsageError(f"{folder} keeps no update of sampled tokens; train with keep.updates = 12, say")
    return {lag: _joined(pairs) for lag, pairs in sorted(found.items())}


def _joined(pairs: Sequence[tuple[np.ndarray, np.ndarray]]) -> Tokens:
    lengths = torch.tensor([len(now) for now, _ in pairs])
    trajectory = torch.arange(len(pairs)).repeat_interleave(lengths)
    order = torch.cat([torch.arange(len(now)) for now, _ in pairs])
    logp, anchor = (torch.from_numpy(np.concatenate(column)) for column in zip(*pairs, strict=True))
    return Tokens(logp, anchor, Places(trajectory, order, torch.zeros_like(order), lengths))


# --- the page


def number(x: float | None) -> str:
    """Three digits."""
    return "" if x is None else f"{x + 0.0:.3g}".replace("e-0", "e-").replace("e+0", "e")


def table(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """A markdown table."""
    rows = [head, ["---"] * len(head), *lines]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


HEAD = ("mean", "median", "max", "deviation", "mean ratio", "effective", "no clamp", "clamped", "A < 0", "A > 0")


def cells(found: Sample) -> list[str]:
    """The columns of `HEAD`."""
    logs, read = found.logs, values(found.metrics)
    names = ("unit_ratio_clamped", "below", "above")
    shape = (logs.mean(), np.median(logs), logs.max(), logs.std())
    shares = (read["unit_ratio"], read["unit_effective_tokens"], found.effective, *(read[name] for name in names))
    return [number(None if x is None else float(x)) for x in (*shape, *shares)]


def block(found: Measured) -> str:
    """The numbers of a law."""
    clip = ALGORITHMS["ctpo"].clip
    assert isinstance(clip, GrowingClip)
    main = [
        [f"{name} ({ROWS[name]})", f"{t:,}", *cells(one)]
        for name, by_length in found.samples.items()
        for t, one in by_length.items()
    ]
    bounds = []
    for t, one in found.samples["prefix"].items():
        read = values(one.metrics)
        below, above = outside(found.law, clip, t)
        bounds.append([f"{t:,}", *map(number, (read["below"], below, read["above"], above))])
    names = (
        "unit_ratio",
        "unit_ratio_max",
        "unit_effective_tokens",
        "unit_ratio_clamped",
        "clipped_up",
        "clipped_down",
    )
    batch = [[name, *(number(read[key]) for key in names)] for name, read in found.logged.items()]
    growth = ", ".join(f"{name} {round(found.growth(name), 2) + 0.0:.2f}" for name in ROWS)
    return "\n\n".join(
        [
            table(("ratio (row)", "t", *HEAD), main),
            f"The deviation grows like t^k, the variance like t^2k; k: {growth}.",
            "Prefix products outside `ctpo`'s bounds, measured and exact:",
            table(("t", "below", "exact", "above", "exact"), bounds),
            f"Logged of a batch of {LENGTHS[LONGEST]} trajectories of {LONGEST:,} tokens, over all their tokens:",
            table(("ratio", *(f"`{name}`" for name in names)), batch),
        ]
    )


def precision_block(errors: Errors) -> str:
    """The errors of sums."""
    lines = (
        ("sum in float64, given in float32 (the learner's)", "exact sum of the float32 log-ratios", errors.sums),
        ("running sum in float32", "the same", errors.running),
        ("the learner's", "exact sum before log-probabilities were rounded", errors.rounding),
    )
    return table(("prefix log-ratio", "against", "largest error"), [(a, b, f"{error:.1e}") for a, b, error in lines])


def run_block(folders: Sequence[Path]) -> str:
    """The numbers of stale runs."""
    out = []
    for folder in folders:
        by_lag = trained(folder)
        shape, lines = [], []
        for lag, tokens in by_lag.items():
            each = log_ratio(tokens.logp, tokens.anchor).double()
            size = float(each.std())
            horizon = 1 / size**2 if size else math.inf
            counts = [f"{len(tokens.places.lengths):,}", f"{len(each):,}", str(int(tokens.places.lengths.max()))]
            told = (float(each.mean()), -(size**2) / 2, float(each.exp().mean()), size)
            shape.append([str(lag), *counts, *map(number, told), f"{horizon:,.0f}"])
            if lag in (min(by_lag), max(by_lag)):
                lines += [[str(lag), *line] for line in _places(tokens)]
        head = (
            "lag",
            "trajectories",
            "tokens",
            "longest",
            "mean log r",
            "-var / 2",
            "mean r",
            "deviation s",
            "1 / s^2",
        )
        out += [f"Run `{folder.name}`, by lag in batches:", table(head, shape)]
        out += ["Its smallest and largest lag:", table(("lag", "ratio (row)", "t", *HEAD), lines)]
    return "\n\n".join(out)


def _places(tokens: Tokens) -> list[list[str]]:
    """Token and prefix ratios at some places, the others at the last tokens."""
    found: list[list[str]] = []
    for name, row in ROWS.items():
        ends = {"end": tokens.last}
        if name in ("token", "prefix"):
            ends = {f"{t:,}": torch.nonzero(tokens.places.order == t - 1).flatten() for t in PLACES}
        units = units_of(name, tokens)
        found += [[f"{name} ({row})", t, *cells(sample(units, at))] for t, at in ends.items() if len(at) >= FEWEST]
    return found


def replaced(page: str, name: str, content: str) -> str:
    """The page with another content of a block.

    Raises:
        UsageError: the page has no such block.
    """
    before, mark, rest = page.partition(f"<!-- made: {name} -->\n")
    _, end, after = rest.partition("<!-- end -->")
    if not mark or not end:
        raise UsageError(f"the page has no block `<!-- made: {name} -->` with `<!-- end -->` after it; write one")
    return f"{before}{mark}{content}\n{end}{after}"


# --- the picture

COLOURS = {"token": "#1b7837", "prefix": "#2166ac", "trajectory": "#2166ac", "sequence": "#b2182b"}


@dataclass(frozen=True, slots=True)
class Panel:
    """A frame of the picture: logarithmic t to the right, y up.

    Args:
        left: of the frame, in pixels.
        bottom, top: what y stands for at its lower and upper edge.
    """

    left: float
    bottom: float
    top: float

    def point(self, t: float, y: float) -> str:
        """Pixels of a point; y is held inside the frame."""
        x = self.left + 250 * math.log(t) / math.log(LONGEST)
        return (
            f"{x:.1f},{280 - 240 * (min(max(y, self.bottom), self.top) - self.bottom) / (self.top - self.bottom):.1f}"
        )

    def line(self, points: Iterable[tuple[float, float]], style: str) -> str:
        """A line through points."""
        return f'<polyline points="{" ".join(self.point(*p) for p in points)}" fill="none" {style}/>'

    def dot(self, t: float, y: float, colour: str) -> str:
        """A measured point."""
        x, up = self.point(t, y).split(",")
        return f'<circle cx="{x}" cy="{up}" r="3" fill="{colour}"/>'

    def text(self, t: float, y: float, words: str, colour: str = "#333") -> str:
        """Words at a point."""
        x, up = self.point(t, y).split(",")
        return f'<text x="{x}" y="{up}" fill="{colour}">{words}</text>'

    def frame(self, title: str, marks: Mapping[float, str]) -> str:
        """The frame with its title and the marks of both axes."""
        parts = [f'<rect x="{self.left:.1f}" y="40" width="250" height="240" fill="none" stroke="#999"/>']
        parts.append(f'<text x="{self.left:.1f}" y="28" font-weight="bold">{title}</text>')
        for t in LENGTHS:
            x = self.point(t, self.bottom).split(",")[0]
            parts.append(f'<text x="{x}" y="296" text-anchor="middle">{t:,}</text>')
        for y, words in marks.items():
            up = self.point(1, y).split(",")[1]
            parts.append(f'<text x="{self.left - 5:.1f}" y="{up}" dy="4" text-anchor="end">{words}</text>')
        return "\n".join(parts)


def picture(size: float, found: Measured) -> str:
    """Three panels: prefix products and their bounds, deviations, effective shares; plain SVG.

    Args:
        size: deviation of a token's log-ratio.
        found: what its law with drift gave.
    """
    grid = [round(LONGEST ** (i / 60)) for i in range(61)]
    clip = ALGORITHMS["ctpo"].clip
    assert isinstance(clip, GrowingClip)
    paths = Panel(50, -80, 40)
    parts = [paths.frame(f"log of prefix products, s = {size}", {40: "40", 20: "20", 0: "0", -20: "-20", -80: "-80"})]
    for drift, colour in ((False, "#bbbbbb"), (True, COLOURS["prefix"])):
        tokens = tokens_of(drawn(Law(size, drift), LONGEST, 0, 12))
        logs = unit_log_ratio(PrefixRatio(), log_ratio(tokens.logp, tokens.anchor), tokens.places).reshape(12, -1)
        style = f'stroke="{colour}" stroke-width="0.8"'
        parts += [paths.line([(t, float(path[t - 1])) for t in grid], style) for path in logs]
    for edge in (-clip.low, clip.high):
        parts.append(paths.line([(t, edge * t**clip.power) for t in grid], 'stroke="black" stroke-width="1.5"'))
    for clamp in (-20.0, 20.0):
        parts.append(paths.line([(1, clamp), (LONGEST, clamp)], 'stroke="#b2182b" stroke-dasharray="5 4"'))
    notes = {34.0: ("grey: no drift", "#888"), -40.0: ("blue: exact ratios", COLOURS["prefix"])}
    notes |= {-48.0: ("black: bounds of ctpo", "black"), -56.0: ("red: clamp", COLOURS["sequence"])}
    parts += [paths.text(1.3, y, *note) for y, note in notes.items()]
    spreads = Panel(360, -4, 1.5)
    parts.append(spreads.frame("deviation of log ratio", {1: "10", 0: "1", -1: "0.1", -2: "0.01", -3: "0.001"}))
    shares = Panel(670, 0, 1)
    parts.append(shares.frame("effective share of trajectories", {0: "0", 0.5: "0.5", 1: "1"}))
    powers = {"token": 0.0, "trajectory": 0.5, "sequence": -0.5}
    for name, power in powers.items():
        style = f'stroke="{COLOURS[name]}"'
        law = [(t, size * t**power) for t in grid]
        parts.append(spreads.line([(t, math.log10(spread)) for t, spread in law], style))
        parts.append(shares.line([(t, math.exp(-(spread**2))) for t, spread in law], style))
        for t, one in found.samples[name].items():
            parts.append(spreads.dot(t, math.log10(float(one.logs.std())), COLOURS[name]))
            parts.append(shares.dot(t, one.effective, COLOURS[name]))
    words = {"token": "token", "trajectory": "prefix at t, trajectory of t", "sequence": "sequence of t"}
    for name, t, y in (("trajectory", 1.5, 0.6), ("token", 400, -1.1), ("sequence", 1.5, -3.4)):
        parts.append(spreads.text(t, y, words[name], COLOURS[name]))
    parts.append(shares.text(1.5, 0.9, "token, sequence", COLOURS["token"]))
    parts.append(shares.text(1.5, 0.2, words["trajectory"], COLOURS["trajectory"]))
    head = '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 950 320" font-family="sans-serif" font-size="11">'
    back = '<rect width="950" height="320" fill="white"/>'
    axis = '<text x="470" y="314" text-anchor="middle">t, sampled tokens (logarithmic); lines: the law, dots: measured</text>'
    return "\n".join([head, back, *parts, axis, "</svg>\n"])


def main() -> None:
    """Measure and print, or write into the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", type=Path, nargs="+", default=[], help="run folders with stale data")
    parser.add_argument("--write", type=Path, default=None, help="the page whose blocks are replaced")
    given = parser.parse_args()
    torch.set_num_threads(1)
    found = {law.name: measure(law) for law in LAWS}
    blocks = {name: block(one) for name, one in found.items()}
    blocks["precision"] = precision_block(precision(LAWS[0]))
    if given.run:
        blocks["runs"] = run_block(given.run)
    if given.write is None:
        print("\n\n".join(f"## {name}\n\n{content}" for name, content in blocks.items()))
        return
    page = given.write.read_text()
    for name, content in blocks.items():
        page = replaced(page, name, content)
    given.write.with_suffix(".svg").write_text(picture(LAWS[0].size, found[LAWS[0].name]))
    given.write.write_text(page)


if __name__ == "__main__":
    main()
