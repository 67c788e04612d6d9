"""Stateful business worlds: SQLite behind typed tools, tasks judged by the final database."""
