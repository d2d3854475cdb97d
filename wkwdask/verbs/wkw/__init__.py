"""Verbs as they are for WKW."""
