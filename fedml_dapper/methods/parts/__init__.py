"""Parts of methods: what several share, and what fills a module of its own; each is named after what it is."""
