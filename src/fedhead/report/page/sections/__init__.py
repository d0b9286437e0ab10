"""Sections of a page, in order; a section without data is omitted."""

from __future__ import annotations

from fedhead.report.page.content import Content
from fedhead.report.page.markup import Section
from fedhead.report.page.sections import (
    analyses,
    classes,
    clients,
    costs,
    curves,
    listing,
    partitions,
    privacy,
    progress,
    results,
    tuning,
)


def every(content: Content) -> list[Section]:
    """Return all sections of a page."""
    sections = [
        progress.section(content),
        results.section(content),
        results.gains_section(content),
        curves.section(content),
        partitions.section(content),
        classes.section(content),
        classes.confusion_section(content),
        clients.section(content),
        clients.cross_site_section(content),
        tuning.section(content),
        analyses.section(content),
        privacy.section(content),
        costs.traffic_section(content),
        costs.time_section(content),
        listing.section(content),
    ]
    return [section for section in sections if section is not None]
