"""Notebooks as pages, with the output that they are kept with."""

from __future__ import annotations

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from nbconvert import MarkdownExporter
from traitlets.config import Config

_PANDAS_STYLE = re.compile(r"<style scoped>.*?</style>\n<table[^>]*>", re.DOTALL)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    exporter = MarkdownExporter(config=Config(ExtractOutputPreprocessor={"enabled": False}))  # pictures stay inside
    for notebook in [file for file in files if file.src_uri.endswith(".ipynb")]:
        markdown, _ = exporter.from_filename(notebook.abs_src_path)
        plain = _PANDAS_STYLE.sub("<table>", markdown)  # such a table scrolls where it is too wide
        files.append(File.generated(config, str(Path(notebook.src_uri).with_suffix(".md")), content=plain))
    return files
