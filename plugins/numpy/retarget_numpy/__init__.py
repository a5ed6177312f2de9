"""The reference backend: graphs evaluated op by op, and linear programs interpreted, with NumPy."""
