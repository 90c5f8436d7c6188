"""Statistics of evaluations and runs, and the tables, figures and reports made of them; returns text and bytes."""
