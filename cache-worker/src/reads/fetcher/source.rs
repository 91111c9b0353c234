//! Where is an object read from, and which of its bytes?

use std::ops::Range;
use std::sync::Arc;

use millrace_api::block::{CHUNK_BYTES, Span};
use tokio::time::Instant;

use super::Target;
use crate::origin::window::Priority;
use crate::origin::{GetStream, ObjectVersion, Origin};
use crate::reads::error::FetchError;

/// Where a flight's object is read from.
pub(super) struct Source {
    origin: Arc<Origin>,
    object: ObjectVersion,
}

impl Source {
    pub(super) fn of(target: &Target) -> Result<Self, FetchError> {
        let (version, object) = (&target.version, &target.object);
        let path = || version.path_text(object.file);
        if object.archived {
            return Err(FetchError::archived(&path()));
        }
        let origin = version.origin(object.source).ok_or_else(|| FetchError::no_source(&path()))?;
        let view = version.view();
        let key = view.key(object.file).and_then(|key| String::from_utf8(key).ok());
        let etag = view.etag(object.file);
        let (Some(key), Some(etag)) = (key, etag) else { return Err(FetchError::damaged_index(&path())) };
        Ok(Self { origin, object: ObjectVersion { key, etag: etag.into_owned(), size: object.span.size } })
    }

    pub(super) fn get(&self, range: Range<u64>, priority: Priority, deadline: Instant) -> GetStream {
        self.origin.get(self.object.clone(), range, priority, deadline)
    }
}

/// The bytes of some chunks of an object, from the object's start.
pub(super) fn byte_range(span: &Span, chunks: &Range<u32>) -> Range<u64> {
    let start = u64::from(chunks.start) * CHUNK_BYTES;
    start..(u64::from(chunks.end) * CHUNK_BYTES).min(span.size).max(start)
}
