//! What is remembered of a large file that is open and read through us?

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::reads::{Located, ReadAhead};

/// A large file that is read through us.
#[derive(Debug)]
pub struct OpenFile {
    /// Where its bytes lie.
    pub located: Located,
    /// How far ahead of its reader it is fetched.
    pub ahead: Mutex<ReadAhead>,
}

/// The open large files by handle; bounded by the kernel's limit on open files.
#[derive(Debug)]
pub struct Handles {
    /// Largest read-ahead window of one of them, bytes.
    ahead_limit_bytes: u64,
    files: Mutex<HashMap<u64, Arc<OpenFile>>>,
}

impl Handles {
    /// No open files.
    pub fn new(ahead_limit_bytes: u64) -> Self {
        Self { ahead_limit_bytes, files: Mutex::default() }
    }

    /// What is remembered of a file at first.
    pub fn start(&self, located: Located) -> OpenFile {
        OpenFile { located, ahead: Mutex::new(ReadAhead::new(self.ahead_limit_bytes)) }
    }

    /// Remembers a file under a handle.
    pub fn insert(&self, handle: u64, located: Located) {
        self.files.lock().insert(handle, Arc::new(self.start(located)));
    }

    /// What is remembered under a handle; none after a take-over, when a file is known by its node only.
    pub fn get(&self, handle: u64) -> Option<Arc<OpenFile>> {
        self.files.lock().get(&handle).cloned()
    }

    /// Forgets a file.
    pub fn remove(&self, handle: u64) {
        self.files.lock().remove(&handle);
    }
}
