"""`strop.run`, the door for programs: where it may be called, and what it says otherwise."""

import asyncio
from pathlib import Path

import pytest

import strop
from tests.loop.runs import tables

SHORT = {"stages.0.steps": 1, "stages.1.steps": 1}


def test_a_notebook_is_told_to_use_a_thread_and_a_thread_works(tmp_path: Path) -> None:
    async def inside() -> None:
        with pytest.raises(strop.UsageError, match=r"await asyncio.to_thread\(strop.run"):
            strop.run(tables(SHORT), tmp_path / "run", unaudited=True)
        assert not (tmp_path / "run").exists()
        found = await asyncio.to_thread(strop.run, tables(SHORT), tmp_path / "run", unaudited=True)
        assert found[-1]["eval_greedy_success"] is not None

    asyncio.run(inside())


def test_one_text_in_the_place_of_a_list_is_told(tmp_path: Path) -> None:
    with pytest.raises(strop.UsageError, match="give a list of texts"):
        strop.run(tables(), tmp_path / "run", sets="stages.0.steps=1")
    assert not (tmp_path / "run").exists()
