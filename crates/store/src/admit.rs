//! May these bytes be kept?

use crate::stats::NotKept;
use crate::usage::Held;

/// The bounds of a tier that its usage record is held against.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bounds {
    /// Upper bound of allocated bytes.
    pub quota_bytes: u64,
    /// The part of it for what is read through for others.
    pub read_through_bytes: u64,
    /// Upper bound of store files.
    pub max_files: u64,
}

impl Bounds {
    /// The bounds for a quota of which `percent` is kept for reads for others.
    pub fn new(quota_bytes: u64, percent: u8, max_files: u64) -> Self {
        let percent = u128::from(percent.min(50));
        let read_through_bytes = (u128::from(quota_bytes) * percent / 100) as u64;
        Self { quota_bytes, read_through_bytes, max_files }
    }
}

/// What somebody wants to add.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Ask {
    /// Allocated bytes.
    pub bytes: u64,
    /// New store files.
    pub files: u64,
    /// Whether the bytes are read through for others.
    pub is_read_through: bool,
}

/// What the tier holds with the addition, or why it may not be made.
pub(crate) fn admit(held: &Held, bounds: &Bounds, ask: &Ask) -> Result<Held, NotKept> {
    let (share, limit) = if ask.is_read_through {
        (held.read_through_bytes, bounds.read_through_bytes)
    } else {
        (held.bytes - held.read_through_bytes.min(held.bytes), bounds.quota_bytes - bounds.read_through_bytes)
    };
    let whole = held.bytes.saturating_add(ask.bytes);
    if share.saturating_add(ask.bytes) > limit || whole > bounds.quota_bytes {
        return Err(NotKept::Quota);
    }
    if held.files + ask.files > bounds.max_files {
        return Err(NotKept::Files);
    }
    Ok(Held {
        bytes: whole,
        read_through_bytes: held.read_through_bytes + if ask.is_read_through { ask.bytes } else { 0 },
        files: held.files + ask.files,
        changes: held.changes,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_class_fills_its_own_share_to_the_last_byte() {
        let bounds = Bounds::new(100 * 4096, 5, 10);
        let held = Held::default();
        let owned = |bytes| Ask { bytes, files: 0, is_read_through: false };
        let through = |bytes| Ask { bytes, files: 0, is_read_through: true };
        let full = admit(&held, &bounds, &owned(95 * 4096)).unwrap();
        assert_eq!(admit(&held, &bounds, &owned(95 * 4096 + 1)), Err(NotKept::Quota));
        assert_eq!(admit(&full, &bounds, &owned(1)), Err(NotKept::Quota));
        let both = admit(&full, &bounds, &through(5 * 4096)).unwrap();
        assert_eq!((both.bytes, both.read_through_bytes), (100 * 4096, 5 * 4096));
        assert_eq!(admit(&both, &bounds, &through(1)), Err(NotKept::Quota));
    }

    #[test]
    fn files_are_bounded_and_nothing_overflows() {
        let bounds = Bounds::new(u64::MAX, 0, 1);
        let ask = Ask { bytes: 1, files: 1, is_read_through: false };
        let one = admit(&Held::default(), &bounds, &ask).unwrap();
        assert_eq!(admit(&one, &bounds, &ask), Err(NotKept::Files));
        let huge = Ask { bytes: u64::MAX, ..Ask::default() };
        assert!(admit(&one, &bounds, &huge).is_ok_and(|held| held.bytes == u64::MAX));
    }
}
