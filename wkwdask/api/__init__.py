"""The verbs that people type."""
