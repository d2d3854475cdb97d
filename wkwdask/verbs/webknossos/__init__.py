"""Verbs that only WEBKNOSSOS datasets have: edits of the dataset JSON and its folders, and the
merge of volume annotations."""
