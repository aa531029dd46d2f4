"""Parts of methods that several share, or that have a page of their own; each module is named after what it is."""
