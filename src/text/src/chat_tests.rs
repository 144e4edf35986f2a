//! Chat templates in files.
