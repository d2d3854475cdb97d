"""Where jobs run: configurations of clusters, what starts them, and what tells whether they work."""
