"""Object storage: uris, reads of byte ranges, and conditional writes. This package has no code about video."""
