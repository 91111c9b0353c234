//! What does this worker know about one path?

use millrace_api::index::{FileIndex, Node};
use millrace_control::proto;
use millrace_control::proto::why_answer::What;

use super::status::object_failure;
use crate::versions::Version;
use crate::worker::Worker;

/// Blocks told of one object: a 64 GiB object of 8 MiB blocks; of larger ones the first.
const MAX_BLOCKS: u32 = 8192;

/// Keys told that were left out.
const MAX_LEFT_OUT: usize = 100;

/// Tells all about `path` of a version.
pub fn why(worker: &Worker, version: &Version, path: &[u8]) -> proto::WhyAnswer {
    let view = version.view();
    let what = match view.resolve(path) {
        Some(Node::File(file)) => object(worker, version, file).map_or(What::Unknown(true), What::Object),
        Some(Node::Dir(dir)) => {
            let children = view.dir(dir).map_or(0, |dir| u64::from(dir.child_count));
            match left_out(version, path) {
                // A folder that lacks keys is asked about for that reason; no path at all asks for all keys left out.
                Some(left_out) if path != b"/" => What::LeftOut(left_out),
                _ => What::Directory(proto::WhyDirectory { children }),
            }
        }
        None => left_out(version, path).map_or(What::Unknown(true), What::LeftOut),
    };
    let epoch = worker.members.current().epoch;
    proto::WhyAnswer { worker: worker.members.name().to_owned(), epoch, what: Some(what) }
}

fn object(worker: &Worker, version: &Version, file: FileIndex) -> Option<proto::WhyObject> {
    let view = version.view();
    let (object, record) = (version.object(file)?, view.file(file)?);
    let source = view.source(record.source)?;
    let failure = worker.fetcher.failures.lock().last(&object.id).map(object_failure);
    let membership = worker.members.current();
    let span = object.span;
    let first = span.first_slot.checked_div(span.file.slots_per_block).unwrap_or(0);
    let blocks = (first..span.file.blocks()).take(MAX_BLOCKS as usize).filter_map(|index| {
        let chunks = span.chunks_in_block(index);
        if chunks.is_empty() {
            return None;
        }
        let present = worker.fetcher.store.present(&span.file, span.slots(chunks.clone())).count();
        let bytes =
            chunks.clone().filter_map(|chunk| span.place(chunk)).map(|place| u64::from(place.len)).sum();
        let owner = membership.owner(object.placement(index)).and_then(|owner| membership.workers.get(owner));
        Some(proto::WhyBlock {
            index,
            chunks: chunks.end - chunks.start,
            chunks_present: present,
            bytes,
            owner: owner.map(|worker| worker.name.clone()).unwrap_or_default(),
        })
    });
    Some(proto::WhyObject {
        bucket: source.bucket.to_owned(),
        endpoint: source.endpoint.to_owned(),
        key: view.key(file)?,
        etag: view.etag(file)?.into_owned(),
        size: record.size,
        modified_ms: record.modified_ms,
        archived: record.archived,
        content: span.file.content.to_string(),
        packed: object.is_packed(),
        blocks: blocks.collect(),
        last_error: failure,
    })
}

/// The keys at or below `path` that are not shown; `None` where there is none.
fn left_out(version: &Version, path: &[u8]) -> Option<proto::WhyLeftOut> {
    let view = version.view();
    let wanted = path.strip_prefix(b"/").unwrap_or(path);
    let wanted = wanted.strip_suffix(b"/").unwrap_or(wanted);
    let mut keys = Vec::new();
    let mut total = 0;
    for (source, key, reason) in view.left_out() {
        let Some(source) = view.source(source) else { continue };
        let below = key.strip_prefix(source.prefix.as_bytes()).unwrap_or(key);
        let shown =
            [source.path.as_bytes(), below].join(if source.path.is_empty() { &b""[..] } else { &b"/"[..] });
        let is_below = |text: &[u8]| wanted.is_empty() || text.starts_with(wanted);
        // As the user may have written it: the path it would have, or the key itself.
        if !is_below(&shown) && !is_below(key) {
            continue;
        }
        total += 1;
        if keys.len() < MAX_LEFT_OUT {
            keys.push(proto::LeftOutKey { key: key.to_vec(), reason: reason.to_string() });
        }
    }
    (total > 0).then_some(proto::WhyLeftOut { keys, total })
}
