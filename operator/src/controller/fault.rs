//! Where may a test end the operator? At the points between the steps of a reconcile, and between its writes. Without the feature
//! `fault-points` this is nothing.

/// The points, in the order in which a Dataset's life passes them first.
pub const POINTS: [&str; 12] = [
    "finalizer", // the Dataset has it
    "secret",    // one Secret is made, or found
    "secrets",   // both are
    "adopted",   // an object's creation is forgotten, what it should be is not applied yet
    "object",    // one object is as wanted
    "objects",   // all are
    "ordered",   // workers are told what to do
    "rolled",    // a worker that is to be replaced is deleted
    "told",      // the status is written, its events are not
    "status",    // all is done
    "cleanup",   // what is left of a deleted Dataset is known
    "deleted",   // one object of it is deleted
];

/// A test stopped it here.
#[derive(Debug, thiserror::Error)]
#[error("stopped at {point:?} by a test")]
pub struct Fault {
    /// Where.
    pub point: &'static str,
}

/// Passes a point, or stops there: `MILLRACE_FAULT_POINT=objects:3` ends the process at the third passing of `objects`,
/// `objects:3:error` fails that reconcile.
///
/// # Errors
/// Where a test asked for it.
#[cfg(feature = "fault-points")]
pub fn point(name: &'static str) -> Result<(), Fault> {
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicU32, Ordering};

    static WANTED: OnceLock<Option<(String, u32, bool)>> = OnceLock::new();
    static PASSED: AtomicU32 = AtomicU32::new(0);
    assert!(POINTS.contains(&name), "{name} is not among the points");
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
        return Err(Fault { point: name });
    }
    tracing::warn!(point = name, "ended by a test");
    std::process::abort();
}

/// Passes a point.
///
/// # Errors
/// Never.
#[cfg(not(feature = "fault-points"))]
pub fn point(name: &'static str) -> Result<(), Fault> {
    let _ = name;
    Ok(())
}
