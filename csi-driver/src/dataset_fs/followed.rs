//! Which large files are being read, where the kernel opens nothing?
//!
//! Without opens there is no handle to keep a reader's place under; it is kept for each file instead, for those read last.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

/// Most files followed at a time: readers beyond that many lose their read-ahead, nothing else. A node's readers hold some
/// hundreds of files open at most; one entry is about 200 bytes.
const MAX_FOLLOWED: usize = 1024;

/// What is known of the large files read last.
#[derive(Debug)]
pub struct Followed<T> {
    files: Mutex<Files<T>>,
}

#[derive(Debug)]
struct Files<T> {
    uses: u64,
    by_number: HashMap<u32, (Arc<T>, u64)>,
}

impl<T> Default for Followed<T> {
    fn default() -> Self {
        Self { files: Mutex::new(Files { uses: 0, by_number: HashMap::new() }) }
    }
}

impl<T> Followed<T> {
    /// What is known of a file, or else what `start` makes; `None` where that makes nothing.
    pub fn get(&self, file: u32, start: impl FnOnce() -> Option<T>) -> Option<Arc<T>> {
        let files = &mut *self.files.lock();
        files.uses += 1;
        if let Some((known, used)) = files.by_number.get_mut(&file) {
            *used = files.uses;
            return Some(Arc::clone(known));
        }
        let started = Arc::new(start()?);
        if files.by_number.len() >= MAX_FOLLOWED {
            // Half at a time, so that the search for the oldest is rare.
            let mut uses: Vec<u64> = files.by_number.values().map(|(_, used)| *used).collect();
            let middle = *uses.select_nth_unstable(MAX_FOLLOWED / 2).1;
            files.by_number.retain(|_, (_, used)| *used > middle);
        }
        files.by_number.insert(file, (Arc::clone(&started), files.uses));
        Some(started)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_started_once_while_it_is_in_use() {
        let followed = Followed::default();
        let first = followed.get(0, || Some(0)).unwrap();
        for file in 1..10_000 {
            followed.get(file, || Some(file)).unwrap();
            let again = followed.get(0, || panic!("started again")).unwrap();
            assert!(Arc::ptr_eq(&first, &again));
        }
        assert!(followed.files.lock().by_number.len() <= MAX_FOLLOWED);
        assert_eq!(followed.get(1, || None), None, "long unused");
    }
}
