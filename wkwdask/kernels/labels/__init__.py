"""Labels: components, tables of pairs, counts, maps of ids."""
