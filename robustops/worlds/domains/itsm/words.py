"""Vocabulary of the generated ITSM world."""

from __future__ import annotations

GROUPS = (
    ("Network Team", "Infrastructure Problem Team"),
    ("Service Desk North", "Service Desk"),
    ("Desktop Support", "IT Support"),
    ("Database Team", "Infrastructure Problem Team"),
    ("Field Crew East", "Field Support Technicians"),
    ("Access Management", "IT Support"),
    ("Service Desk South", "Service Desk"),
    ("Server Operations", "Infrastructure Problem Team"),
    ("Field Crew West", "Field Support Technicians"),
    ("Application Support", "IT Support"),
    ("Print Services", "IT Support"),
    ("Storage Team", "Infrastructure Problem Team"),
)
ITEMS = (
    ("Laptop", "LT"),
    ("Desktop", "DT"),
    ("Printer", "PR"),
    ("Server", "SV"),
    ("Router", "RT"),
    ("Switch", "SW"),
    ("Tablet", "TB"),
    ("Phone", "PH"),
)
SUBJECTS = (
    ("VPN", "network"),
    ("Mail client", "software"),
    ("Payroll portal", "software"),
    ("Badge reader", "hardware"),
    ("File share", "network"),
    ("Billing database", "database"),
    ("Meeting screen", "hardware"),
    ("Login page", "password-reset"),
    ("Backup job", "database"),
    ("Wireless network", "network"),
    ("Docking station", "hardware"),
    ("Travel app", "software"),
    ("Time sheet form", "software"),
    ("Scanner", "hardware"),
    ("Shared calendar", "software"),
    ("Report server", "database"),
)
SYMPTOMS = (
    "is very slow",
    "does not start",
    "drops every hour",
    "shows an error",
    "rejects the password",
    "is offline",
    "loses data",
    "freezes often",
    "asks for a license",
    "needs a restart",
)
ARTICLES = (
    "How to reset a VPN profile",
    "Clearing the mail cache",
    "Replacing a badge reader",
    "Restarting the backup job",
    "Unlocking an account",
    "Mapping the file share",
    "Docking station firmware",
    "Reading the error log",
    "Renewing a license",
    "Moving a mailbox",
    "Scanner driver setup",
    "Freeing disk space",
    "Joining the wireless network",
    "Setting up a meeting screen",
    "Payroll portal roles",
    "Restoring deleted data",
)
CHANGES = (
    "Replace core switch",
    "Upgrade mail server",
    "Renew certificates",
    "Patch the database",
    "Move backup storage",
    "Update the firewall",
    "Retire old printers",
    "Extend the wireless network",
    "Upgrade the payroll portal",
    "Swap server disks",
)
SLAS = (
    ("Critical Response", "response", "critical", 15),
    ("High Response", "response", "high", 60),
    ("Moderate Response", "response", "moderate", 240),
    ("Critical Resolution", "resolution", "critical", 240),
    ("High Resolution", "resolution", "high", 480),
    ("Low Resolution", "resolution", "low", 2880),
)
SERVICES = ("Mail", "Remote Access", "Payroll", "File Storage", "Printing", "Identity")
CITIES = ("Oslo", "Lyon", "Denver", "Osaka", "Turin", "Leeds")
RESOURCES = ("incident", "problem", "change", "knowledge", "users", "sla")
