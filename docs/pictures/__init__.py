"""The pictures of the pages, drawn by code: one module a picture; ``python -m docs.pictures`` writes all of them, and
``python -m docs.pictures.take`` records and photographs a run."""
