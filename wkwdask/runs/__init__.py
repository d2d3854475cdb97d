"""The life of a job, whatever it does: folder, journal, resuming, publishing, progress, reports."""
