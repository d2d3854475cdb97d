"""Bytes outside of memory: files, locks, records, remote stores and zip archives."""
