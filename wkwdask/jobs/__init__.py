"""Jobs: from a plan to tasks, from the receipts of tasks to the next tasks, and to a report. Knows no scheduler."""
