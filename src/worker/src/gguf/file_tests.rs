//! Tests of GGUF files, good and bad.
