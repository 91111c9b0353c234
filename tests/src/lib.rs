//! The harness and the tests that need real processes, mounts and servers.
