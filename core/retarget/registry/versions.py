"""The versions of the plugin contract, which manifests are checked against before anything is imported."""

API_VERSION = "1.0"
"""Of the plugin API: the manifest, `Backend`, `Capabilities` and the hooks."""

IR_VERSION = "1"
"""Of the IR: ops and their meaning."""
