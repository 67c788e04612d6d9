"""Enumerations of the ITSM world (case-sensitive), as types for the tools' arguments."""

from __future__ import annotations

from typing import Literal, get_args

IncidentStatus = Literal["new", "in_progress", "on_hold", "resolved", "closed", "canceled"]
Priority = Literal["critical", "high", "moderate", "low", "planning"]
ChangePriority = Literal["critical", "high", "moderate", "low"]
Level = Literal["high", "medium", "low"]
IncidentCategory = Literal["inquiry-help", "software", "hardware", "database", "password-reset", "network"]
Channel = Literal["self-service", "phone", "email", "chat", "walk-in", "virtual-agent", "web"]
HoldReason = Literal["Awaiting Change", "Awaiting Caller", "Awaiting Problem"]
ResolutionCode = Literal[
    "Duplicate",
    "Known Error",
    "No resolution provided",
    "Resolved By Caller",
    "Resolved By Problem",
    "Resolved By Change",
    "Solution Provided",
    "Workaround Provided",
    "User error",
]
ProblemStatus = Literal["new", "assess", "root_cause", "fix_in_progress", "resolved", "closed"]
ProblemCategory = Literal["network", "software", "hardware", "database"]
ChangeStatus = Literal["new", "assess", "authorize", "scheduled", "implement", "review", "closed", "canceled"]
ChangeCategory = Literal[
    "network",
    "software",
    "hardware",
    "documentation",
    "system_software",
    "application_software",
    "service",
    "telecom",
    "other",
]
CloseCode = Literal["successful", "successful_with_issues", "unsuccessful"]
NotificationType = Literal["alert", "update", "reminder", "report", "solution_proposal", "other"]
NotificationStatus = Literal["queued", "sent", "delivered", "opened", "failed"]
ArticleState = Literal["draft", "review", "published", "retired"]
Visibility = Literal["internal", "external"]
UsedAs = Literal["suggested", "applied", "resolution"]
ItemStatus = Literal["in_use", "in_stock", "maintenance", "retired", "disposed"]
UserRole = Literal["admin", "manager", "agent", "reporter"]
GroupType = Literal["IT Support", "Service Desk", "Field Support Technicians", "Infrastructure Problem Team"]
SlaStage = Literal["in_progress", "paused", "completed", "cancelled", "breached"]


def members(kind: object) -> tuple[str, ...]:
    """The values of an enumeration."""
    return get_args(kind)
