//! Does Millrace keep its word on a real Kubernetes: real API server, kubelets, containers, mounts?
//!
//! All is in one module so that `scripts/run-tests` can leave it out while no cluster is up.

#![expect(clippy::unwrap_used, reason = "a test may fail in any line")]

mod on_kubernetes;
