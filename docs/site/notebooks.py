"""Notebooks as pages, with the output that they are kept with."""

from __future__ import annotations

from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from nbconvert import MarkdownExporter


def on_files(files: Files, config: MkDocsConfig) -> Files:
    exporter = MarkdownExporter()
    for notebook in [file for file in files if file.src_uri.endswith(".ipynb")]:
        markdown, _ = exporter.from_filename(notebook.abs_src_path)
        files.append(File.generated(config, str(Path(notebook.src_uri).with_suffix(".md")), content=markdown))
    return files
