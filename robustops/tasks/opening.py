"""Domain and catalogue that the settings describe."""

from __future__ import annotations

from robustops.settings import DomainSettings
from robustops.tasks.catalog import Catalog, build_catalog
from robustops.worlds.domain import Domain, get_domain


def open_catalog(settings: DomainSettings) -> tuple[Domain, Catalog]:
    """The domain at its level of detail, and its tasks by split (drawn when first asked for)."""
    domain = get_domain(settings.name, settings.detail, settings.database)
    catalog = build_catalog(
        domain,
        seed=settings.seed,
        counts={"train": settings.train, "val": settings.val, "test": settings.test},
        database=settings.database,
        size=settings.size,
    )
    return domain, catalog
