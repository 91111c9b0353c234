//! How does the walk from a pod to the bucket read? Pure.

use std::fmt::Write;

use serde_json::{Value, json};

use super::links::{Link, State, first_broken};
use super::why::Kind;

impl Kind {
    fn word(self) -> &'static str {
        match self {
            Kind::Pod => "pod",
            Kind::Dataset => "dataset",
        }
    }
}

/// For people.
pub fn text(kind: Kind, namespace: &str, name: &str, links: &[Link]) -> String {
    let mut text = format!("{} {namespace}/{name}\n", kind.word());
    let several =
        links.iter().filter_map(|link| link.of.as_deref()).collect::<std::collections::BTreeSet<_>>().len()
            > 1;
    for Link { link, of, state, says, cure } in links {
        let word = match state {
            State::Ok => "ok",
            State::Waiting => "waiting",
            State::Broken => "BROKEN",
            State::Unknown => "unknown",
        };
        let of = of.as_ref().filter(|_| several).map(|of| format!(" of {of}")).unwrap_or_default();
        // Writing into a String does not fail.
        let _ = writeln!(text, "  {word:<8} {link}{of}: {says}");
        if let Some(cure) = cure {
            let _ = writeln!(text, "           cure: {cure}");
        }
    }
    let end = match first_broken(links) {
        Some(Link { link: "dataset", of: Some(of), .. }) => {
            format!("the first broken link is dataset {of:?} itself; see its cure above\n")
        }
        Some(Link { link, of, .. }) => {
            let of = of.as_ref().map(|of| format!(" of dataset {of:?}")).unwrap_or_default();
            format!("the first broken link is the {link}{of}; see its cure above\n")
        }
        None if links.iter().any(|link| link.state == State::Waiting) => {
            "nothing is broken; what waits is under way\n".to_owned()
        }
        None => "every link holds\n".to_owned(),
    };
    text.push_str(&end);
    text
}

/// For programs; the shape is in `--help`.
pub fn value(kind: Kind, namespace: &str, name: &str, links: &[Link]) -> Value {
    json!({
        "subject": { "kind": kind.word(), "namespace": namespace, "name": name },
        "links": links,
        "broken": first_broken(links),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(link: &'static str, state: State, cure: Option<&str>) -> Link {
        Link { link, of: Some("imagenet".into()), state, says: "so".into(), cure: cure.map(str::to_owned) }
    }

    #[test]
    fn the_broken_link_stands_out_with_its_cure() {
        let links = [link("claim", State::Waiting, None), link("origin", State::Broken, Some("do this"))];
        assert_eq!(
            text(Kind::Pod, "vision", "train", &links),
            "pod vision/train\n  waiting  claim: so\n  BROKEN   origin: so\n           cure: do this\n\
             the first broken link is the origin of dataset \"imagenet\"; see its cure above\n"
        );
        let value = value(Kind::Pod, "vision", "train", &links);
        assert_eq!(
            value["broken"],
            json!({"link": "origin", "of": "imagenet", "state": "broken", "says": "so", "cure": "do this"})
        );
        assert_eq!(value["links"][0]["cure"], Value::Null);
    }

    #[test]
    fn what_only_waits_is_told_as_such() {
        assert!(
            text(Kind::Dataset, "v", "d", &[link("claim", State::Waiting, None)]).contains("is under way")
        );
        assert!(
            text(Kind::Dataset, "v", "d", &[link("claim", State::Ok, None)]).contains("every link holds")
        );
    }
}
