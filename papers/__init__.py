"""Reproduction of four papers: the tables of four papers, on real data, each figure beside the paper's own.

plan.py: what a table is made of; store.py: what was computed, kept by what it was computed from; lab.py: photos,
features, protocols, and the fits that many tables share; results.py: from fits to figures; writing.py: JSON, Markdown
and plots. The tables of each paper stand in a file of their own.
"""
