"""Words that generated calendar worlds and requests are made of."""

from __future__ import annotations

TOPICS = (
    *("Budget", "Sprint", "Roadmap", "Vendor", "Contract", "Launch", "Pricing", "Brand", "Policy", "Hiring"),
    *("Safety", "Data", "Client", "Partner", "Website", "Payroll", "Quality", "Risk", "Travel", "Survey"),
    *("Design", "Market", "Supply", "Metrics"),
)
KINDS = (
    *("review", "planning", "workshop", "demo", "kickoff", "interview", "briefing", "retro", "check", "talk"),
    *("lunch", "training"),
)
CALENDARS = (
    *("Marketing", "Finance", "Legal", "Support", "Sales", "Research", "Facilities", "Security", "Product"),
    *("Platform", "Press", "Onboarding", "Operations", "Analytics", "Community", "Logistics", "Education"),
    *("Compliance", "Procurement", "Editorial", "Studio", "Laboratory", "Warehouse", "Reception", "Board"),
    *("Apollo", "Mercury", "Neptune", "Saturn", "Orion", "Vega", "Atlas", "Falcon", "Phoenix", "Horizon"),
    *("Compass", "Harbor", "Summit", "Meadow", "Lantern"),
)
ROOMS = (
    *("Maple", "Cedar", "Birch", "Oak", "Willow", "Aspen", "Elm", "Hazel", "Juniper", "Linden", "Rowan"),
    *("Spruce", "Alder", "Beech", "Poplar", "Walnut", "Cypress", "Laurel", "Myrtle", "Olive"),
)
BUILDINGS = ("North", "South", "East", "West")
COLORS = ("Lavender", "Sage", "Grape", "Flamingo", "Banana", "Tangerine", "Peacock", "Graphite", "Tomato")
DEPARTMENTS = ("Marketing", "Finance", "Engineering", "Sales", "Legal", "Support")
TIME_ZONES = ("Europe/Berlin", "Europe/London", "America/New_York", "Asia/Tokyo")
DOMAINS = ("orion.example", "harbor.example", "lumen.example", "atlas.example", "cobalt.example")
MESSAGES = (
    "Moved to next quarter",
    "The room is not ready",
    "Please bring your laptop",
    "The speaker is ill",
    "New agenda is attached",
    "We start on time",
    "Slides are ready",
    "The client asked for it",
    "Please read the report first",
    "Lunch is served",
    "We meet online",
    "The venue has changed",
)
MINUTES = (5, 10, 15, 20, 30, 45, 60, 90, 120)


def all_titles() -> list[str]:
    """Every event title that the vocabulary can make, such as `Budget review`."""
    return [f"{topic} {kind}" for topic in TOPICS for kind in KINDS]
