"""The line about a step on the screen."""

from strop.cli.progress import line
from strop.loop.train import StepDone


def test_the_draw_is_told_only_where_a_sampler_drew() -> None:
    def told(**values: float) -> str:
        return line(StepDone(1, 2, (0, "reinforce"), {"success": 0.5, **values}, None, None, None))

    assert told() == "reinforce success 0.50"
    assert told(sampler_tasks=41.6) == "reinforce success 0.50 tasks 42"
    assert told(sampler_tasks=20.0, sampler_target=3.25) == "reinforce success 0.50 tasks 20 target 3.2"
