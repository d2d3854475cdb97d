"""What jobs do: plans and tasks."""
