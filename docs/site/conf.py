"""The configuration of the site. scripts/docs.sh runs Sphinx with it on a copy of the pages.

Each page has the same path on the site as in the repository, so its links work in both.
"""

import os
import re

REPOSITORY = os.environ["QSIDECAR_REPOSITORY"]  # the root of the checkout
FORGE = "https://github.com/qsidecar/qsidecar"

project = "qsidecar"
author = copyright = "the authors of qsidecar"
extensions = ["myst_parser"]
root_doc = "index"
source_suffix = {".md": "markdown"}

# Links to headings use the same anchors as on the forge.
myst_heading_anchors = 4
suppress_warnings = [
    "myst.header",  # a page can skip a level of headings
    "misc.highlighting_failure",  # examples with … are not valid JSON, and diagrams have no highlighter
]

html_theme = "furo"
html_title = "qsidecar"
html_static_path = ["_static"]
html_show_sphinx = False
html_theme_options = {"source_repository": FORGE, "source_branch": "main", "source_directory": ""}

# diagrams.js draws the diagrams with mermaid.min.js, which is part of the site.
html_js_files = ["diagrams.js"]

LINK = re.compile(r"\]\((?!https?:|mailto:|#)([^)#\s]+)((?:#[^)\s]*)?)\)")
CODE = re.compile(r"(^```.*?^```$|`[^`\n]+`)", re.MULTILINE | re.DOTALL)


def link_to_sources(app, docname, source):
    """Makes links to files that are not pages point to the forge. Pictures stay. A link to nothing stays, and Sphinx reports it."""
    folder = os.path.dirname(docname)

    def to_forge(match):
        path = os.path.normpath(os.path.join(folder, match[1]))
        if os.path.exists(os.path.join(app.srcdir, path)) and path.endswith((".md", ".svg", ".webp")):
            return match[0]
        file = os.path.join(REPOSITORY, path)
        if not os.path.exists(file):
            return match[0]
        return f"]({FORGE}/{'tree' if os.path.isdir(file) else 'blob'}/main/{path}{match[2]})"

    parts = CODE.split(source[0])
    parts[::2] = [LINK.sub(to_forge, part) for part in parts[::2]]
    source[0] = "".join(parts)


def setup(app):
    app.connect("source-read", link_to_sources)
