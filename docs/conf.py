"""How the documentation is built: `make docs`, warnings are errors, nothing is fetched."""

import os
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "_ext"))
os.environ.setdefault("OMP_NUM_THREADS", "2")

import gradveil  # noqa: E402

project = "gradveil"
author = "the gradveil authors"
version = release = gradveil.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_gallery.gen_gallery",
    "sphinx_copybutton",
    "sphinx_design",
    "site_pages",
]
exclude_patterns = ["_build", "_ext", "gallery/README.rst", "gallery/*.py"]
nitpicky = True
nitpick_ignore_regex = [
    ("py:.*", r"(?!gradveil\.).*"),  # other packages' names cannot be looked up offline
    ("py:.*", r"gradveil\.(.*\.)?_.*"),  # types that have no public name
]

myst_enable_extensions = ["colon_fence", "deflist", "attrs_inline"]
myst_heading_anchors = 4
suppress_warnings = ["config.cache"]

default_role = "code"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True}
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_preprocess_types = False
python_maximum_signature_line_length = 88
add_module_names = False
toc_object_entries_show_parents = "hide"

sphinx_gallery_conf = {
    "examples_dirs": "gallery",
    "gallery_dirs": "generated/gallery",
    "filename_pattern": r"/plot_",
    "within_subsection_order": "FileNameSortKey",
    "abort_on_example_error": True,
    "only_warn_on_example_error": False,
    "download_all_examples": False,
    "show_signature": False,
    "min_reported_time": 10_000,
    "remove_config_comments": True,
    "copyfile_regex": r".*\.(png|csv)",
}

html_theme = "furo"
html_title = "gradveil"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sphinx = False
html_show_copyright = False
html_copy_source = False
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True
