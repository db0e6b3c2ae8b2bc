"""Erase what a deletion leaves: files, stored answers, job items, reports, snapshots, and space in the database."""
