"""Reproduction of four papers: their tables on real data, with each figure beside the paper's own.

Each paper has a package with one module per table. They share `harness/`: `table_types` (computations, rows, tables),
`run_context` (photos, protocols, and fits that many tables share), `result_store` (stored results), `results` (from
results to figures), `verdicts`, and `page_writer` and `pages` (JSON, Markdown and plots).
"""
