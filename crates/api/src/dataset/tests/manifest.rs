//! Is a user's file read as it is meant, and refused with the cure where it is not?

use super::assert_says;
use crate::dataset::manifest::{Manifest, ParseManifest};
use crate::dataset::spec::Dataset;

fn parse_error(text: &str) -> String {
    Manifest::parse(text).unwrap_err().to_string()
}

const HEAD: &str = "apiVersion: millrace.dev/v1alpha1\nkind: Dataset\nmetadata: {name: x}\n";
const SPEC: &str = "spec: {sources: [{path: /, s3: {bucket: abc, region: r}}]}\n";

#[test]
fn examples_are_valid_and_complete() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples");
    let mut names = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        // Folders hold what needs more than one file.
        if path.is_dir() {
            continue;
        }
        let manifest = Manifest::parse(&std::fs::read_to_string(&path).unwrap())
            .unwrap_or_else(|e| panic!("{path:?}: {e}"));
        assert_eq!(manifest.secret_problems(), [], "{path:?}");
        names.push(path.file_name().unwrap().to_str().unwrap().to_owned());
    }
    names.sort();
    assert_eq!(names, ["minimal.yaml", "minio.yaml", "several-sources.yaml", "web-identity.yaml"]);
}

#[test]
fn a_file_says_all_its_problems_at_once() {
    let error =
        parse_error(&format!("{HEAD}spec:\n  sorces: []\n  workers: {{replica: 3, blockSize: 8Mi}}\n"));
    for line in [
        "\n  spec.sorces: unknown field \"sorces\": did you mean \"sources\"?",
        "\n  spec.workers.replica: unknown field \"replica\": did you mean \"replicas\"?",
        "\n  spec.workers.blockSize: unknown field \"blockSize\": it belongs in spec.workers.cache",
        "\n  spec: field \"sources\" is missing: add it",
    ] {
        assert!(error.contains(line), "{error}");
    }
    assert!(error.starts_with("Dataset \"x\" is not valid:"), "{error}");
}

#[test]
fn unknown_fields_outside_the_spec_are_named_too() {
    let error = parse_error(&format!("{HEAD}{SPEC}sepc: {{}}\n"));
    assert!(error.contains("sepc: unknown field \"sepc\": did you mean \"spec\"?"), "{error}");
    let error = parse_error(&format!("{}{SPEC}", HEAD.replace("name: x", "name: x, lables: {}")));
    assert!(error.contains("metadata.lables: unknown field \"lables\": did you mean \"labels\"?"), "{error}");
    let error = parse_error(&format!("{}{SPEC}", HEAD.replace("name: x", "name: 123")));
    assert!(error.contains("metadata.name: 123 is no name"), "{error}");
}

#[test]
fn objects_of_other_kinds_are_passed_over_and_named() {
    let job = "apiVersion: batch/v1\nkind: Job\nmetadata: {name: train}\nspec: {anything: [1]}\n";
    let manifest = Manifest::parse(&format!("{job}---\n{HEAD}{SPEC}")).unwrap();
    assert_eq!(manifest.others, ["Job \"train\""]);
    assert!(parse_error(job).contains("has no Dataset"));
}

#[test]
fn ours_of_another_version_are_refused_by_kind_and_place() {
    let error = parse_error(&format!("{HEAD}{SPEC}---\napiVersion: v2\nkind: Secret\n"));
    assert!(error.starts_with("document 2 is \"Secret\" of \"v2\""), "{error}");
    let error = parse_error(&format!("{HEAD}{SPEC}---\nkind: Job\n"));
    assert!(error.starts_with("document 2 is \"Job\" of \"\""), "{error}");
    let error = parse_error(&format!("{}{SPEC}", HEAD.replace("v1alpha1", "v1")));
    assert!(error.contains("\"millrace.dev/v1\"") && error.contains("millrace.dev/v1alpha1"), "{error}");
    assert!(parse_error("").contains("has no Dataset"));
    assert!(parse_error("---\n---\n").contains("has no Dataset"));
    assert!(parse_error("- a list\n").starts_with("document 1 is \"\""));
    let error = parse_error(&format!("{HEAD}{SPEC}---\n{}{SPEC}", HEAD.replace("name: x", "name: y")));
    assert!(error.contains("[\"x\", \"y\"]") && error.contains("one in each file"), "{error}");
}

#[test]
fn what_is_no_yaml_is_named_by_document() {
    let error = Manifest::parse(&format!("{HEAD}{SPEC}---\na: [\n")).unwrap_err();
    assert!(matches!(error, ParseManifest::Yaml { document: 2, .. }), "{error}");
    let twice = Manifest::parse(&format!("{HEAD}{SPEC}{SPEC}")).unwrap_err();
    let ParseManifest::Yaml { source, .. } = twice else { panic!("{twice}") };
    assert!(source.to_string().contains("duplicate"), "{source}");
    assert!(parse_error(&"#".repeat(2 << 20)).contains("2097152 bytes"));
    assert!(parse_error(&"a: 1\n---\n".repeat(100)).contains("more than 17 documents"));
}

#[test]
fn defaults_and_nulls_mean_the_same() {
    let manifest = Manifest::parse(&format!("{HEAD}{SPEC}")).unwrap();
    let with_nulls = Manifest::parse(&format!(
        "{HEAD}{}  workers:\n  mount: {{uid: null, nodeCache: null}}\n",
        "spec:\n  sources: [{path: /, s3: {bucket: abc, region: r, credentials: null}}]\n"
    ));
    assert_eq!(manifest, with_nulls.unwrap());
    let Dataset { metadata, spec, status } = manifest.dataset;
    assert_eq!((metadata.namespace.as_deref(), status), (Some("default"), None));
    assert_eq!(spec.workers.replicas, 1);
    assert_eq!(spec.workers.cache.block_size().bytes(), 8 << 20);
    assert_eq!(spec.mount.node_cache.quota.bytes(), 10 << 30);
    assert_eq!((spec.mount.file_mode.bits(), spec.mount.dir_mode.bits()), (0o444, 0o555));
}

#[test]
fn secrets_are_decoded_and_never_printed() {
    let secret = "apiVersion: v1\nkind: Secret\nmetadata: {name: s}\ndata: {AWS_ACCESS_KEY_ID: aGVsbG8=}\nstringData: {AWS_SECRET_ACCESS_KEY: topsecret}\n";
    let spec = SPEC.replace("region: r", "region: r, credentials: {secretRef: {name: s}}");
    let manifest = Manifest::parse(&format!("{secret}---\n{HEAD}{spec}")).unwrap();
    assert_eq!(manifest.secret_problems(), []);
    let found = manifest.secret("s").unwrap();
    assert_eq!(found.data["AWS_ACCESS_KEY_ID"], b"hello");
    assert_eq!(found.data["AWS_SECRET_ACCESS_KEY"], b"topsecret");
    let printed = format!("{manifest:?}");
    assert!(
        printed.contains("AWS_SECRET_ACCESS_KEY")
            && !printed.contains("topsecret")
            && !printed.contains("hello")
    );

    let other = Manifest::parse(&format!(
        "{}---\n{HEAD}{spec}",
        secret.replace("name: s", "name: s, namespace: other")
    ))
    .unwrap();
    assert_says(&other.secret_problems(), "spec.sources[0].s3.credentials.secretRef.name", "\"s\"", "add it");

    for (wrong, message) in [
        (secret.replace("aGVsbG8=", "topsecret!"), "data.AWS_ACCESS_KEY_ID: value is not base64"),
        (secret.replace("topsecret", "12345678"), "stringData.AWS_SECRET_ACCESS_KEY: value is not a text"),
        (secret.replace("AWS_ACCESS_KEY_ID", "AWS_ACCESS_KEYID"), "did you mean \"AWS_ACCESS_KEY_ID\"?"),
        (
            secret.replace("stringData", "stringdata"),
            "unknown field \"stringdata\": did you mean \"stringData\"?",
        ),
        (secret.replace("{name: s}", "{}"), "metadata.name"),
    ] {
        let error = parse_error(&format!("{wrong}---\n{HEAD}{spec}"));
        assert!(error.contains(message), "{error}");
        assert!(!error.contains("topsecret") && !error.contains("12345678"), "{error}");
    }
}

#[test]
fn a_secret_without_its_keys_is_named() {
    let spec = SPEC.replace("region: r", "region: r, credentials: {secretRef: {name: s}}");
    let problems = |data: &str| {
        let secret = format!("apiVersion: v1\nkind: Secret\nmetadata: {{name: s}}\nstringData: {{{data}}}\n");
        Manifest::parse(&format!("{secret}---\n{HEAD}{spec}")).unwrap().secret_problems()
    };
    let field = "spec.sources[0].s3.credentials.secretRef.name";
    assert_says(&problems(""), field, "\"s\"", "no AWS_ACCESS_KEY_ID: add it");
    assert_says(&problems("AWS_ACCESS_KEY_ID: a"), field, "\"s\"", "no AWS_SECRET_ACCESS_KEY");
    assert_says(
        &problems("AWS_ACCESS_KEY_ID: a, AWS_SECRET_ACCESS_KEY: \" \""),
        field,
        "\"s\"",
        "no AWS_SECRET_ACCESS_KEY",
    );
    assert_says(&problems("AWS_ROLE_ARN: a"), field, "\"s\"", "no AWS_WEB_IDENTITY_TOKEN_FILE");
    assert_eq!(problems("AWS_ACCESS_KEY_ID: a, AWS_SECRET_ACCESS_KEY: b"), []);
}

#[test]
fn anonymous_without_braces_is_refused_since_it_would_mean_the_opposite() {
    let error = parse_error(&format!(
        "{HEAD}{}",
        SPEC.replace("region: r", "region: r, credentials: {anonymous: null}")
    ));
    assert!(
        error.contains("spec.sources[0].s3.credentials.anonymous: null")
            && error.contains("\"anonymous: {}\""),
        "{error}"
    );
}

#[test]
fn damaged_files_are_refused_or_read_never_a_panic() {
    let text = include_str!("../../../../../examples/minio.yaml");
    // A multiplicative generator suffices to spread the damage; the seed is fixed.
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = |below: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % below
    };
    let mut read = 0;
    for _ in 0..1_000 {
        let mut bytes = text.as_bytes().to_vec();
        for _ in 0..=random(3) {
            let at = random(bytes.len());
            match random(3) {
                0 => drop(bytes.remove(at)),
                1 => bytes[at] = b" \n\t:-{}[]&*!|>'\"%@`#,?0a~"[random(25)],
                _ => bytes.insert(at, (random(96) + 32) as u8),
            }
        }
        read += usize::from(Manifest::parse(&String::from_utf8_lossy(&bytes)).is_ok());
    }
    assert!(read > 0 && read < 1_000, "{read}");
}
