"""What makes a site of the pages: hooks of mkdocs, whose settings are in ``mkdocs.yml``."""
