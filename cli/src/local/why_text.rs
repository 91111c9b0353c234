//! How do the answers about a path read together? Pure.

use std::fmt::Write;

use indicatif::{BinaryBytes, HumanCount};
use k8s_openapi::jiff::Timestamp;
use millrace_control::proto;
use millrace_control::proto::why_answer::What;

/// Blocks that are told one by one; of more, those are counted that nobody has.
const MAX_BLOCKS: usize = 64;

/// A worker and what it answers.
type Answer = (String, anyhow::Result<proto::WhyAnswer>);

/// Explains a path, and tells whether the dataset knows it: shows it, or says why not.
pub fn explain(path: &[u8], answers: &[Answer], node_percent: Option<&str>) -> (String, bool) {
    let mut text = String::new();
    let what: Vec<(&str, &What)> = answers
        .iter()
        .filter_map(|(worker, answer)| Some((worker.as_str(), answer.as_ref().ok()?.what.as_ref()?)))
        .collect();
    let objects: Vec<(&str, &proto::WhyObject)> = what
        .iter()
        .filter_map(|(worker, what)| match what {
            What::Object(object) => Some((*worker, object)),
            What::Directory(_) | What::LeftOut(_) | What::Unknown(_) => None,
        })
        .collect();
    let shown = String::from_utf8_lossy(path.strip_prefix(b"/").unwrap_or(path));
    let is_known = match (objects.first(), what.first()) {
        (Some(_), _) => {
            object(&mut text, &shown, &objects, node_percent);
            true
        }
        (None, Some((_, What::LeftOut(left_out)))) => {
            keys(&mut text, &shown, left_out);
            true
        }
        (None, Some((_, What::Directory(directory)))) => {
            if path.is_empty() {
                text.push_str("every key is shown\n");
            }
            // Writing into a String does not fail.
            let _ = writeln!(text, "/{shown}: a folder of {} entries", HumanCount(directory.children));
            true
        }
        (None, _) => {
            let _ = writeln!(
                text,
                "/{shown}: the version has no such path, and no key there was left out; it may be newer than the listing: \
                 `millrace local down` and `up` list anew"
            );
            false
        }
    };
    for (_, answer) in answers {
        if let Err(error) = answer {
            let _ = writeln!(text, "note: {error:#}");
        }
    }
    (text, is_known)
}

fn object(text: &mut String, path: &str, objects: &[(&str, &proto::WhyObject)], node_percent: Option<&str>) {
    let Some((_, first)) = objects.first() else { return };
    let key = String::from_utf8_lossy(&first.key);
    let endpoint = if first.endpoint.is_empty() { String::new() } else { format!(" at {}", first.endpoint) };
    let _ = writeln!(text, "/{path}: object {key:?} of bucket {:?}{endpoint}", first.bucket);
    let _ = writeln!(
        text,
        "  etag {}, {}, modified {}",
        first.etag,
        BinaryBytes(first.size),
        time(first.modified_ms)
    );
    if first.archived {
        text.push_str("  archived: it cannot be read until it is restored in the bucket\n");
    }
    let count = first.blocks.len();
    let packed = if first.packed { "packed with its neighbours, " } else { "" };
    let _ = writeln!(text, "  {packed}{count} block{}", if count == 1 { "" } else { "s" });
    let mut absent = 0;
    for (at, block) in first.blocks.iter().enumerate() {
        let held: Vec<String> = objects
            .iter()
            .filter_map(|(worker, object)| {
                let present = object.blocks.get(at)?.chunks_present;
                (present > 0).then(|| format!("{worker} has {present} of {}", block.chunks))
            })
            .collect();
        if held.is_empty() {
            absent += 1;
        }
        if at < MAX_BLOCKS {
            let held =
                if held.is_empty() { "not cached".to_owned() } else { format!("{} chunks", held.join(", ")) };
            let _ = writeln!(
                text,
                "  block {} ({}): owner {}; {held}",
                block.index,
                BinaryBytes(block.bytes),
                block.owner
            );
        }
    }
    if count > MAX_BLOCKS {
        let _ = writeln!(text, "  and {} more; of all, {absent} are not cached", count - MAX_BLOCKS);
    }
    match node_percent {
        Some(percent) => _ = writeln!(text, "  this node's store has {percent} %"),
        None => text.push_str("  this node's store: not known, it is not mounted\n"),
    }
    let errors = objects.iter().filter_map(|(worker, object)| Some((*worker, object.last_error.as_ref()?)));
    match errors.max_by_key(|(_, error)| error.at_ms) {
        None => text.push_str("  no errors\n"),
        Some((worker, error)) => {
            let at = time(i64::try_from(error.at_ms).unwrap_or(i64::MAX));
            let _ = writeln!(text, "  last error ({worker}, {at}): {} ({})", error.message, error.reason);
            if let Some(cure) = cure(&error.reason) {
                let _ = writeln!(text, "  cure: {cure}");
            }
        }
    }
}

fn keys(text: &mut String, path: &str, left_out: &proto::WhyLeftOut) {
    let proto::WhyLeftOut { keys, total } = left_out;
    let _ = writeln!(text, "/{path}: {} keys are not shown", HumanCount(*total));
    for proto::LeftOutKey { key, reason } in keys {
        let _ = writeln!(text, "  {:?}: {reason}", String::from_utf8_lossy(key));
    }
    let more = total.saturating_sub(keys.len() as u64);
    if more > 0 {
        let _ = writeln!(text, "  and {} more", HumanCount(more));
    }
}

/// What the user can do, by the reason; the message itself says it for the others.
fn cure(reason: &str) -> Option<&'static str> {
    match reason {
        "Changed" | "NoSuchKey" => Some(
            "the object is no longer what was listed: `millrace local down` and `up` list the bucket anew, as another version",
        ),
        "Archived" => Some("restore it in the bucket, then read it again"),
        "Kms" => Some("allow the credentials to use the key that the object is encrypted with (kms:Decrypt)"),
        "AccessDenied" => Some("allow the credentials s3:GetObject on this key"),
        "ExpiredToken" => {
            Some("write new credentials into the Dataset's Secret, then `millrace local down` and `up`")
        }
        _ => None,
    }
}

fn time(milliseconds: i64) -> String {
    Timestamp::from_millisecond(milliseconds)
        .map_or_else(|_| "at an unknown time".to_owned(), |time| time.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(worker: &str, what: What) -> Answer {
        (worker.to_owned(), Ok(proto::WhyAnswer { worker: worker.into(), epoch: 1, what: Some(what) }))
    }

    fn object_at(present: [u32; 2], error: Option<(&str, u64)>) -> What {
        let blocks = present.iter().zip(0..).map(|(present, index)| proto::WhyBlock {
            index,
            chunks: 128,
            chunks_present: *present,
            bytes: 8 << 20,
            owner: format!("w-{index}"),
        });
        let last_error = error.map(|(reason, at_ms)| proto::ObjectFailure {
            path: "a".into(),
            reason: reason.into(),
            message: "it differs".into(),
            at_ms,
        });
        What::Object(proto::WhyObject {
            bucket: "b".into(),
            key: b"p/a".to_vec(),
            etag: "\"e\"".into(),
            size: 16 << 20,
            blocks: blocks.collect(),
            last_error,
            ..Default::default()
        })
    }

    #[test]
    fn blocks_are_told_with_owner_and_holders_and_the_newest_error_with_its_cure() {
        let answers = [
            answer("w-0", object_at([128, 0], Some(("TimedOut", 1000)))),
            answer("w-1", object_at([3, 0], Some(("Changed", 2000)))),
        ];
        let (text, is_known) = explain(b"a", &answers, Some("40"));
        assert!(is_known);
        for line in [
            "/a: object \"p/a\" of bucket \"b\"",
            "block 0 (8.00 MiB): owner w-0; w-0 has 128 of 128, w-1 has 3 of 128 chunks",
            "block 1 (8.00 MiB): owner w-1; not cached",
            "this node's store has 40 %",
            "last error (w-1, 1970-01-01T00:00:02Z): it differs (Changed)",
            "cure: the object is no longer what was listed",
        ] {
            assert!(text.contains(line), "{line}\n{text}");
        }
        assert!(!text.contains("TimedOut"));
    }

    #[test]
    fn keys_that_are_not_shown_are_told_with_the_reason() {
        let keys = vec![proto::LeftOutKey { key: b"x//y".to_vec(), reason: "empty segment".into() }];
        let (text, is_known) =
            explain(b"x", &[answer("w-0", What::LeftOut(proto::WhyLeftOut { keys, total: 3 }))], None);
        assert!(
            is_known && text.contains("\"x//y\": empty segment") && text.contains("and 2 more"),
            "{text}"
        );
    }

    #[test]
    fn a_path_that_nobody_knows_is_no_success_and_a_silent_worker_is_noted() {
        let silent = ("w-1".to_owned(), Err(anyhow::anyhow!("no answer")));
        let (text, is_known) = explain(b"zz", &[answer("w-0", What::Unknown(true)), silent], None);
        assert!(
            !is_known
                && text.contains("/zz: the version has no such path")
                && text.contains("note: no answer")
        );
        let root = answer("w-0", What::Directory(proto::WhyDirectory { children: 2 }));
        assert!(explain(b"", &[root], None).0.starts_with("every key is shown"));
    }
}
