"""IT service management: incidents, problems, changes, knowledge, SLAs (24 tables)."""

from __future__ import annotations

from robustops.worlds.database import WorldDatabase
from robustops.worlds.domain import Domain
from robustops.worlds.domains.itsm.load import load_file
from robustops.worlds.domains.itsm.schema import SCRIPT
from robustops.worlds.domains.itsm.seed import fill_world
from robustops.worlds.domains.itsm.templates import TEMPLATES
from robustops.worlds.domains.itsm.tools import ItsmTools

POLICY = (
    "You are a service desk agent. Look up ids before you write; never guess one. Do what is asked once and "
    "change no other record. If a reply is incomplete, broken or about something else, ask again. Repeat a "
    "call that was not executed. If a receipt is missing, look whether the write landed before you repeat it."
)


class ItsmDomain(Domain):
    """The ITSM world: its own generated seed world, or a database file in the format of the real one."""

    name = "itsm"
    schema = SCRIPT
    policy = POLICY
    toolset = ItsmTools
    templates = TEMPLATES

    def fill(self, database: WorldDatabase, seed: int, size: str) -> None:
        fill_world(database, seed, size)

    def load(self, database: WorldDatabase, path: str) -> None:
        load_file(database, path)


DOMAIN = ItsmDomain
