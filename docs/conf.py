"""Configure how Sphinx builds these pages: ``make docs``, warnings are errors."""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

project = 'Kilonova'
extensions = ['myst_parser', 'generate']
exclude_patterns: list[str] = []
html_theme = 'alabaster'
html_theme_options = {
    'description': 'Compute control plane for clouds whose servers carry GPUs',
    'page_width': '1180px',
    'sidebar_width': '250px',
    'fixed_sidebar': True,
}
html_show_copyright = False
html_show_sphinx = False
html_copy_source = False
myst_enable_extensions = ['deflist']
myst_heading_anchors = 3
highlight_language = 'none'
