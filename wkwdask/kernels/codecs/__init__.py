"""Codecs whose loops are compiled here."""
