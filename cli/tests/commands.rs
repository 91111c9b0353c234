//! Do the commands that need no dataset work as programs?

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Output, Stdio};

fn millrace(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_millrace")).args(args).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Ends the program with the test.
struct Serving(Child);

impl Drop for Serving {
    fn drop(&mut self) {
        // Ended by itself already, in tests that ask it to.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn get(address: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(address.trim_start_matches("http://")).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    String::from_utf8_lossy(&answer).into_owned()
}

#[test]
fn s3_serve_prints_where_it_is_and_ends_when_asked() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("a")).unwrap();
    std::fs::write(dir.path().join("a/b.txt"), "hello").unwrap();
    let child = Command::new(env!("CARGO_BIN_EXE_millrace"))
        .args(["s3", "serve", dir.path().to_str().unwrap(), "--bucket", "docs", "-o", "json"])
        .args(["--synthetic", "bucket=made,objects=10,size=1KiB"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut child = Serving(child);
    let mut line = String::new();
    BufReader::new(child.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let printed: serde_json::Value = serde_json::from_str(&line).unwrap();
    assert_eq!(printed["buckets"], serde_json::json!(["docs", "made"]));
    let endpoint = printed["endpoint"].as_str().unwrap();
    assert!(get(endpoint, "/docs/a/b.txt").ends_with("hello"));
    assert!(get(endpoint, "/made?list-type=2").contains("<KeyCount>10</KeyCount>"));
    assert!(get(printed["admin"].as_str().unwrap(), "/counters").contains("200 OK"));
    let pid = child.0.id().to_string();
    assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
    assert!(child.0.wait().unwrap().success());
}

#[test]
fn s3_serve_names_the_folder_that_is_missing_and_the_port_in_use() {
    let missing = millrace(&["s3", "serve", "/no/such/folder"]);
    assert_eq!(missing.status.code(), Some(1));
    assert!(text(&missing.stderr).contains("/no/such/folder"), "{}", text(&missing.stderr));
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let busy = millrace(&["s3", "serve", "--synthetic", "objects=1", "--listen", &address]);
    assert!(text(&busy.stderr).contains(&address), "{}", text(&busy.stderr));
    assert_eq!(text(&busy.stderr).lines().count(), 1);
}

#[test]
fn validate_lists_all_problems_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("dataset.yaml");
    let path = file.to_str().unwrap();
    std::fs::write(
        &file,
        "apiVersion: millrace.dev/v1alpha1\nkind: Dataset\nmetadata: {name: x}\nspec:\n  sources:\n  - path: /\n    s3: {bucket: X, region: r, colour: red}\n",
    )
    .unwrap();
    let refused = millrace(&["validate", "-f", path]);
    let said = text(&refused.stderr);
    assert_eq!(refused.status.code(), Some(1));
    assert!(said.contains("bucket") && said.contains("colour"), "{said}");
    std::fs::write(
        &file,
        "apiVersion: millrace.dev/v1alpha1\nkind: Dataset\nmetadata: {name: x}\nspec:\n  sources:\n  - path: /\n    s3: {bucket: xyz, region: r, credentials: {secretRef: {name: keys}}}\n",
    )
    .unwrap();
    let valid = millrace(&["validate", "-f", path]);
    assert!(valid.status.success());
    assert_eq!(text(&valid.stdout), "valid: Dataset default/x, 1 source, 1 worker, 0 Secrets\n");
    assert!(text(&valid.stderr).contains("\"keys\" is not in the file"), "{}", text(&valid.stderr));
}

#[test]
fn every_dataset_of_the_examples_is_valid() {
    let examples = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples");
    let mut seen = 0;
    for folder in [examples.to_owned(), format!("{examples}/kubernetes")] {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let is_dataset = |path: &std::path::Path| {
                std::fs::read_to_string(path).unwrap().lines().any(|line| line == "kind: Dataset")
            };
            if path.is_dir() || !is_dataset(&path) {
                continue;
            }
            let checked = millrace(&["validate", "-f", path.to_str().unwrap()]);
            assert!(checked.status.success(), "{path:?}: {}", text(&checked.stderr));
            seen += 1;
        }
    }
    assert!(seen >= 10, "{seen}");
}

#[test]
fn what_else_is_in_a_file_is_noted_and_no_mistake() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/kubernetes/minio.yaml");
    let checked = millrace(&["validate", "-f", path]);
    assert!(checked.status.success());
    assert!(text(&checked.stderr).contains("Job \"train\" is not checked"), "{}", text(&checked.stderr));
}

#[test]
fn the_printed_crd_is_the_one_in_the_repository() {
    let printed = millrace(&["crd"]);
    let kept = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../crds/dataset.yaml")).unwrap();
    assert_eq!(text(&printed.stdout), kept);
}

#[test]
fn help_teaches_with_examples_and_exit_codes() {
    let help = text(&millrace(&["--help"]).stdout);
    assert!(help.contains("millrace s3 serve") && help.contains("Exit codes"), "{help}");
    assert_eq!(millrace(&["no-such-command"]).status.code(), Some(2));
}
