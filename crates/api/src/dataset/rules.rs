//! What does the API server refuse? The rules of the CRD in CEL.
//!
//! A message names the value and the cure; the API server puts the field before it. Every list and string that a rule looks at
//! has a bound in its schema, since the API server refuses a CRD whose rules could cost too much.

use kube::core::{Message, Rule};

fn rule(rule: &str, message: &str) -> Rule {
    Rule::new(rule).message(Message::Expression(message.into()))
}

/// The name fits into the labels and host names made from it. The API server knows no bound of `metadata.name`, so that the
/// message may not hold it, and allows no field path into `metadata`.
pub fn name_is_short() -> Rule {
    Rule::new("self.metadata.name.size() <= 63")
        .message("metadata.name is longer than the 63 characters that a label may have: give a shorter one")
}

/// No source lies within another.
pub fn sources_do_not_overlap() -> Rule {
    let lone = |a: &str| {
        format!(
            "self.exists_one(b, {a}.path == b.path || {a}.path == '/' || b.path == '/' \
             || {a}.path.startsWith(b.path + '/') || b.path.startsWith({a}.path + '/'))"
        )
    };
    // The first two of those that do, found by index: only of `self[i]` does the API server know that its path is bounded.
    let indices: Vec<String> = (0..16).map(|i| i.to_string()).collect();
    let offenders = format!("[{}].filter(i, i < self.size() && !{})", indices.join(", "), lone("self[i]"));
    rule(
        &format!("self.all(a, {})", lone("a")),
        &format!(
            r#"'paths "' + self[{offenders}[0]].path + '" and "' + self[{offenders}[1]].path + '" lie within each other: give each source a folder of its own'"#
        ),
    )
}

/// A source's path starts at the root of the mount.
pub fn path_is_absolute() -> Rule {
    rule("self.startsWith('/')", r#"'path "' + self + '" does not start with "/": write "/' + self + '"'"#)
}

/// A source's path does not end with a slash.
pub fn path_has_no_last_slash() -> Rule {
    rule(
        "self == '/' || !self.endsWith('/')",
        r#"'path "' + self + '" ends with "/": leave the last "/" away'"#,
    )
}

/// A source's path has no empty, `.` or `..` segments and no control characters.
pub fn path_is_normal() -> Rule {
    rule(
        r"!self.matches('//|/[.]{1,2}(/|$)|[[:cntrl:]]')",
        r#"'path "' + self + '" has an empty, "." or ".." segment or a control character: write the path without it'"#,
    )
}

/// Globs are matched against keys below the prefix, which do not start with a slash.
pub fn globs_are_relative() -> Rule {
    rule(
        "self.all(glob, !glob.startsWith('/'))",
        r#"'glob "' + self.filter(glob, glob.startsWith('/'))[0] + '" starts with "/", which no key below the prefix does: leave it away, or write "**/" for any folder'"#,
    )
}

/// A bucket's name is one that S3 allows.
pub fn bucket_is_a_name() -> Rule {
    rule(
        r"self.matches('^[a-z0-9][a-z0-9.-]*[a-z0-9]$') && !self.contains('..') && !self.matches('^[0-9]+([.][0-9]+){3}$')",
        r#"'bucket "' + self + '" is no name of a bucket: give 3 to 63 of a-z, 0-9, "-" and ".", without s3:// and key'"#,
    )
}

/// A prefix ends where a path segment ends.
pub fn prefix_is_whole_segments() -> Rule {
    rule(
        "self == '' || self.endsWith('/')",
        r#"'prefix "' + self + '" does not end with "/": write "' + self + '/", or use include for a part of a name'"#,
    )
}

/// A prefix does not start with a slash, as keys do not.
pub fn prefix_is_relative() -> Rule {
    rule(
        "!self.startsWith('/')",
        r#"'prefix "' + self + '" starts with "/", which no key does: leave the first "/" away'"#,
    )
}

/// A region looks like one.
pub fn region_is_a_name() -> Rule {
    rule(
        "self.matches('^[a-z0-9]([a-z0-9-]*[a-z0-9])?$')",
        r#"'region "' + self + '" is no name of a region: give one such as "eu-west-1"'"#,
    )
}

/// There is a server to ask.
pub fn region_or_endpoint() -> Rule {
    rule(
        "has(self.region) || has(self.endpoint)",
        r#"'bucket "' + self.bucket + '" has neither region nor endpoint: give region, such as "eu-west-1", for AWS, else the endpoint of the server'"#,
    )
}

/// An endpoint is a URL of a server and nothing else.
pub fn endpoint_is_a_url() -> Rule {
    rule(
        r"self.matches('^https?://([A-Za-z0-9._-]+|\\[[0-9A-Fa-f:.]+\\])(:[0-9]{1,5})?$')",
        r#"'endpoint "' + self + '" is no URL of a server: write http:// or https://, host, and port if need be, without path or user, such as "https://minio.storage:9000"'"#,
    )
}

/// At most one way to get credentials.
pub fn one_credential() -> Rule {
    rule(
        "!(has(self.secretRef) && has(self.profile)) && !(has(self.secretRef) && has(self.anonymous)) \
            && !(has(self.profile) && has(self.anonymous))",
        "(has(self.secretRef) ? 'secretRef' : 'profile') + ' and ' + (has(self.anonymous) ? 'anonymous' : 'profile') \
            + ' are given together: keep one of them'",
    )
}

/// A Secret's name is one that Kubernetes allows.
pub fn secret_is_a_name() -> Rule {
    rule(
        "self.matches('^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$')",
        r#"'name "' + self + '" is no name of a Secret: give lower-case letters, digits, "-" and "."'"#,
    )
}

/// Paths to warm are written as they are in the mount.
pub fn warm_up_paths_are_normal() -> Rule {
    const NORMAL: &str =
        r"path.startsWith('/') && (path == '/' || !path.endsWith('/')) && !path.matches('//|/[.]{1,2}(/|$)')";
    rule(
        &format!("self.all(path, {NORMAL})"),
        &format!(
            r#"'path "' + self.filter(path, !({NORMAL}))[0] + '" is no path of the mount: start it with "/", without "/" at the end and without empty, "." and ".." segments'"#
        ),
    )
}

/// A mode is written in octal.
pub fn mode_is_octal() -> Rule {
    rule(
        "self.matches('^0?[0-7]{3}$')",
        r#"'mode "' + self + '" is not octal: write three or four digits from 0 to 7 in quotes, such as "0444"'"#,
    )
}

/// The block size is fixed. Asked of the parent, since a rule on the field itself is dodged by removing it and adding another.
pub fn block_size_is_fixed() -> Rule {
    const NEW: &str = "(has(self.workers) && has(self.workers.cache) && has(self.workers.cache.blockSize) \
        ? self.workers.cache.blockSize : '8Mi')";
    let old = NEW.replace("self", "oldSelf");
    rule(
        &format!("{NEW} == {old}"),
        &format!(
            r#"'blockSize "' + {NEW} + '" is not the "' + {old} + '" that the Dataset was created with: keep that, or create another Dataset'"#
        ),
    )
    .field_path(".workers.cache.blockSize")
}

/// Number, order and media of tiers are fixed; asked of the parent for the same reason.
pub fn media_are_fixed() -> Rule {
    const HAS: &str = "has(self.workers) && has(self.workers.cache) && has(self.workers.cache.tiers)";
    let new = format!("({HAS} ? self.workers.cache.tiers.map(tier, tier.medium) : ['Disk'])");
    let old = new.replace("self", "oldSelf");
    // Written out, since `join` has no bound that the API server knows.
    let further: String = (1..4)
        .map(|n| {
            let tiers = "self.workers.cache.tiers";
            format!(" + ({tiers}.size() > {n} ? ', ' + {tiers}[{n}].medium : '')")
        })
        .collect();
    let new_text = format!("({HAS} ? self.workers.cache.tiers[0].medium{further} : 'Disk')");
    let old_text = new_text.replace("self", "oldSelf");
    rule(
        &format!("{new} == {old}"),
        &format!(
            "'tiers of ' + {new_text} + ' are not the ' + {old_text} + ' that the Dataset was created with: keep those and change quotas only, or create another Dataset'"
        ),
    )
    .field_path(".workers.cache.tiers")
}

/// What a tier is kept on is fixed: a StatefulSet's claims are. Asked of the parent for the same reason; tiers that are not there
/// any more are [`media_are_fixed`]'s affair.
pub fn volumes_are_fixed() -> Rule {
    const HAS: &str = "has(self.workers) && has(self.workers.cache) && has(self.workers.cache.tiers)";
    const KIND: &str = "has(tier.volume) && has(tier.volume.volumeClaimTemplate) \
        ? (has(tier.volume.volumeClaimTemplate.storageClassName) ? tier.volume.volumeClaimTemplate.storageClassName : '/default') \
            + ' ' + (has(tier.volume.volumeClaimTemplate.size) ? 'sized' : '') \
        : ''";
    let new = format!("({HAS} ? self.workers.cache.tiers.map(tier, {KIND}) : [''])");
    let old = new.replace("self", "oldSelf");
    Rule::new(format!("{new} == {old}"))
        .message(
            "the volume of a tier is not the one that the Dataset was created with: keep that, or create another Dataset",
        )
        .field_path(".workers.cache.tiers")
}

/// One kind of volume.
pub fn one_volume() -> Rule {
    Rule::new("has(self.emptyDir) != has(self.volumeClaimTemplate)")
        .message("a volume is either emptyDir: {} or a volumeClaimTemplate: give one of them")
}

/// Memory is the pod's own.
pub fn memory_has_no_claim() -> Rule {
    Rule::new("self.medium != 'Memory' || !has(self.volume) || !has(self.volume.volumeClaimTemplate)")
        .message("a tier of Memory has no volumeClaimTemplate: leave volume away, or make it a tier of Disk")
}

/// A service account's name is one that Kubernetes allows.
pub fn service_account_is_a_name() -> Rule {
    rule(
        "self.matches('^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$')",
        r#"'name "' + self + '" is no name of a service account: give lower-case letters, digits, "-" and "."'"#,
    )
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    /// What the API server said of a CRD with them: "estimated rule cost exceeds budget by factor of more than 100x".
    #[test]
    fn no_rule_uses_what_the_api_server_knows_no_bound_of() {
        fn walk(value: &Value, found: &mut usize) {
            match value {
                Value::Object(map) => {
                    for name in ["rule", "messageExpression"] {
                        let text = map.get(name).and_then(Value::as_str).unwrap_or("");
                        *found += usize::from(!text.is_empty());
                        assert!(!text.contains(".join(") && !text.contains("string("), "{text}");
                    }
                    map.values().for_each(|value| walk(value, found));
                }
                Value::Array(list) => list.iter().for_each(|value| walk(value, found)),
                Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
            }
        }
        let mut found = 0;
        walk(crate::dataset::crd::dataset_schema(), &mut found);
        assert!(found > 30, "{found}");
    }
}
