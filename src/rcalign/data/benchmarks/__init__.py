"""The published benchmarks: what is known of them, and how they get from an archive, a folder or a server to disk."""
