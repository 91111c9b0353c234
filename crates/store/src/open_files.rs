//! Which store files does this process hold open?

use std::collections::HashMap;
use std::sync::Arc;

use millrace_api::ids::ContentId;
use parking_lot::Mutex;

use crate::open_file::OpenFile;

/// The open files of one tier, at most `limit`; the longest unused are closed first.
#[derive(Debug)]
pub(crate) struct OpenFiles {
    limit: usize,
    files: Mutex<Files>,
}

#[derive(Debug, Default)]
struct Files {
    uses: u64,
    swept_uses: u64,
    by_content: HashMap<ContentId, (Arc<OpenFile>, u64)>,
}

impl OpenFiles {
    /// Holds at most `limit` files, at least one.
    pub fn new(limit: usize) -> Self {
        Self { limit: limit.max(1), files: Mutex::default() }
    }

    /// The file, if it is open; notes a use.
    pub fn get(&self, content: ContentId) -> Option<Arc<OpenFile>> {
        let files = &mut *self.files.lock();
        files.uses += 1;
        let (file, used) = files.by_content.get_mut(&content)?;
        *used = files.uses;
        Some(file.clone())
    }

    /// The file, if it is open; notes no use.
    pub fn peek(&self, content: ContentId) -> Option<Arc<OpenFile>> {
        self.files.lock().by_content.get(&content).map(|(file, _)| file.clone())
    }

    /// Forgets that a file was used.
    pub fn forget_use(&self, content: ContentId) {
        if let Some((_, used)) = self.files.lock().by_content.get_mut(&content) {
            *used = 0;
        }
    }

    /// Keeps a file open, and returns the one that another thread has put there meanwhile, if any.
    pub fn insert(&self, file: Arc<OpenFile>) -> Arc<OpenFile> {
        let mut files = self.files.lock();
        if files.by_content.len() >= self.limit {
            let oldest = oldest_uses(&files, self.limit);
            files.by_content.retain(|_, (_, used)| *used > oldest);
        }
        files.uses += 1;
        let used = files.uses;
        files.by_content.entry(file.layout.file.content).or_insert((file, used)).0.clone()
    }

    /// Closes a file.
    pub fn remove(&self, content: ContentId) {
        self.files.lock().by_content.remove(&content);
    }

    /// Closes all.
    pub fn clear(&self) {
        self.files.lock().by_content.clear();
    }

    /// All files, each with whether it was used since the last call of this.
    pub fn sweep(&self) -> Vec<(Arc<OpenFile>, bool)> {
        let files = &mut *self.files.lock();
        let last = std::mem::replace(&mut files.swept_uses, files.uses);
        files.by_content.values().map(|(file, used)| (file.clone(), *used > last)).collect()
    }
}

/// The use up to which an eighth of the files is closed: so the search for them is made once in as many openings.
fn oldest_uses(files: &Files, limit: usize) -> u64 {
    let mut uses: Vec<u64> = files.by_content.values().map(|(_, used)| *used).collect();
    let middle = (limit / 8).min(uses.len().saturating_sub(1));
    if uses.is_empty() { 0 } else { *uses.select_nth_unstable(middle).1 }
}
