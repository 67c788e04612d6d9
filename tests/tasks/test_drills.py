from collections import Counter
from typing import Any

import pytest

from robustops.tasks.drills import WORLDS, DrillMaker, argument_sources
from robustops.worlds.domain import domain_names, get_domain
from robustops.worlds.environment import LocalWorld
from robustops.worlds.toolset import tool
from tests.toy_domain import ToyDomain, ToyTools


class WideTools(ToyTools):
    """The toy tools and a few more, since a drill offers up to ten."""

    @tool("read")
    def count_notes(self, status: str | None = None) -> dict[str, Any]:
        """How many notes there are."""
        return {"count": len(self.list_notes(status=status)["notes"])}

    @tool("read")
    def count_boxes(self) -> dict[str, Any]:
        """How many boxes there are."""
        return {"count": len(self.database.find("box"))}

    @tool("read")
    def find_note(self, title: str) -> dict[str, Any]:
        """Notes of a title."""
        return {"notes": [self.show("note", row) for row in self.database.find("note", title=title)]}

    @tool("write")
    def paint_box(self, box_id: str, colour: str) -> dict[str, Any]:
        """Change a box's colour."""
        self.get_box(box_id)
        self.database.update("box", {"id": box_id}, {"colour": colour})
        return self.get_box(box_id)


class WideDomain(ToyDomain):
    """The toy domain with ten tools."""

    toolset = WideTools


TOY = WideDomain()
DOMAINS = ["toy", *domain_names()]


def domain_of(name):
    return TOY if name == "toy" else get_domain(name)


def test_a_drill_depends_on_seed_and_index_only():
    ahead, behind = DrillMaker(TOY, 7), DrillMaker(TOY, 7)
    forwards = [ahead.draw(index) for index in range(20)]
    backwards = [behind.draw(index) for index in reversed(range(20))]
    assert forwards == backwards[::-1]
    assert forwards != [DrillMaker(TOY, 8).draw(index) for index in range(20)]
    assert len({drill.task.prompt for drill in forwards}) == 20


@pytest.mark.parametrize("name", DOMAINS)
def test_replayed_on_a_fresh_world_the_calls_give_the_recorded_replies(name):
    domain = domain_of(name)
    maker, world = DrillMaker(domain, 1), LocalWorld(domain)
    for index in range(25):
        drill = maker.draw(index)
        world.reset(drill.task)
        for call, result in drill.calls:
            assert world.step(call) == result
    world.close()


@pytest.mark.parametrize("name", DOMAINS)
def test_calls_are_allowed_short_and_mostly_accepted(name):
    maker = DrillMaker(domain_of(name), 2)
    drills = [maker.draw(index) for index in range(60)]
    replies = [result for drill in drills for _, result in drill.calls]
    assert sum(result.is_error for result in replies) <= 0.1 * len(replies)
    for drill in drills:
        assert len(drill.calls) <= 5
        assert {call.name for call, _ in drill.calls} <= set(drill.task.allowed_tools)
        assert all(len(result.text) <= 420 for _, result in drill.calls)
        assert drill.task.prompt.endswith(".")
        assert (drill.task.split, drill.task.checks, drill.task.template) == ("drill", (), "drill")
    assert sum(bool(drill.calls) for drill in drills) >= 55
    assert len(Counter(len(drill.calls) for drill in drills)) >= 3


@pytest.mark.parametrize("name", DOMAINS)
def test_every_value_is_in_the_prompt_or_in_an_earlier_reply(name):
    maker = DrillMaker(domain_of(name), 3)
    copied = 0
    for index in range(60):
        drill = maker.draw(index)
        prompt, before = drill.task.prompt.lower(), ""
        for call, result in drill.calls:
            for value in call.arguments.values():
                for part in value if isinstance(value, list) else [value]:
                    text = str(part).lower()
                    assert text in prompt or text in before
                    copied += text not in prompt
            before += result.text.lower()
    assert copied > 5  # some values are to be had from a reply only


def test_drill_worlds_are_few_and_their_own():
    maker = DrillMaker(TOY, 4)
    seeds = {maker.draw(index).task.database.seed for index in range(120)}
    assert 20 < len(seeds) <= WORLDS
    assert not seeds & {DrillMaker(TOY, 5).draw(index).task.database.seed for index in range(20)}


def test_values_come_from_the_column_that_the_argument_names():
    sources = argument_sources(TOY)
    assert (sources["box_id"].table, sources["box_id"].column) == ("box", "id")
    assert (sources["note_id"].table, sources["note_id"].column) == ("note", "id")
    assert (sources["title"].table, sources["title"].column) == ("note", "title")
    assert "limit" not in sources
