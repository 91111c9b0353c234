//! Does a store that is open keep as much as it is told later?

#![allow(clippy::unwrap_used, reason = "tests")]

mod rig;

use millrace_store::{Eviction, NotKept, Store, Written};
use rig::*;

#[test]
fn a_lowered_quota_evicts_at_once_and_a_raised_one_admits_more() {
    for eviction in [Eviction::Never, Eviction::Lru] {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(config(dir.path(), 8 * MIB, eviction)).unwrap();
        let object = large(1, 6 * MIB);
        assert_eq!(put_all(&store, &object), Written::Kept);
        assert!(!store.set_quota(8 * MIB), "nothing new");
        assert!(store.set_quota(3 * MIB));
        assert!(store.usage().used_bytes() <= 3 * MIB && store.usage().used_bytes() > MIB);
        assert_eq!(store.usage().tiers[0].quota_bytes, 3 * MIB);
        assert!(allocated(dir.path()) <= 3 * MIB);
        // Nothing may be kept, as in a store that was opened so.
        assert!(store.set_quota(0));
        assert_eq!(store.usage().used_bytes(), 0);
        assert_eq!(put_all(&store, &object), Written::NotKept(NotKept::Disabled));
        assert!(store.set_quota(16 * MIB));
        assert_eq!(put_all(&store, &object), Written::Kept);
        assert_eq!(put_all(&store, &large(2, 8 * MIB)), Written::Kept);
        assert_eq!(chunks_of(&store, &object).len(), 96);
    }
}
