"""Task templates of the ITSM world, by name."""

from __future__ import annotations

from robustops.worlds.domain import TaskTemplate
from robustops.worlds.domains.itsm.templates.changes import MapChange, OpenChange
from robustops.worlds.domains.itsm.templates.incidents import (
    AffectedItem,
    HoldAndNotify,
    OpenIncident,
    ResolveIncident,
    StartSla,
)
from robustops.worlds.domains.itsm.templates.records import (
    AttachArticle,
    CloseProblem,
    JoinGroup,
    PublishArticle,
)
from robustops.worlds.domains.itsm.templates.several import EscalateItem, HandOver, LinkChildren, LinkProblem

_ALL: tuple[TaskTemplate, ...] = (
    OpenIncident(),
    ResolveIncident(),
    HoldAndNotify(),
    AffectedItem(),
    StartSla(),
    EscalateItem(),
    HandOver(),
    LinkChildren(),
    LinkProblem(),
    PublishArticle(),
    AttachArticle(),
    OpenChange(),
    MapChange(),
    JoinGroup(),
    CloseProblem(),
)

TEMPLATES: dict[str, TaskTemplate] = {template.name: template for template in _ALL}
