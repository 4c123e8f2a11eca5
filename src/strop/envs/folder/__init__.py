"""A user's own tasks, one folder each: read, worked on at a bench, judged by cases or by a script."""
