//! Where may a test end the operator? At the points between the steps of a reconcile. Without the feature `fault-points` this is
//! nothing.

use super::error::ReconcileError;

/// Points between steps, in order.
pub const POINTS: [&str; 7] = ["finalizer", "secrets", "objects", "rolled", "ordered", "status", "cleanup"];

/// Passes a point, or stops there: `MILLRACE_FAULT_POINT=objects:3` ends the process at the third passing of `objects`,
/// `objects:3:error` fails that reconcile.
///
/// # Errors
/// Where a test asked for it.
#[cfg(feature = "fault-points")]
pub fn point(name: &'static str) -> Result<(), ReconcileError> {
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicU32, Ordering};

    static WANTED: OnceLock<Option<(String, u32, bool)>> = OnceLock::new();
    static PASSED: AtomicU32 = AtomicU32::new(0);
    let wanted = WANTED.get_or_init(|| {
        let text = std::env::var("MILLRACE_FAULT_POINT").ok()?;
        let mut parts = text.split(':');
        let name = parts.next()?.to_owned();
        let count = parts.next().and_then(|count| count.parse().ok()).unwrap_or(1);
        Some((name, count, parts.next() == Some("error")))
    });
    let Some((wanted, count, is_error)) = wanted else { return Ok(()) };
    if wanted != name || PASSED.fetch_add(1, Ordering::SeqCst) + 1 != *count {
        return Ok(());
    }
    if *is_error {
        return Err(ReconcileError::Fault { point: name });
    }
    tracing::warn!(point = name, "ended by a test");
    std::process::abort();
}

/// Passes a point.
///
/// # Errors
/// Never.
#[cfg(not(feature = "fault-points"))]
pub fn point(name: &'static str) -> Result<(), ReconcileError> {
    let _ = name;
    Ok(())
}
