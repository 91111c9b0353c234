//! Does it work with an S3 server that is not ours?

use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::rig::{Rig, body, can_run, until};

const BUCKET: &str = "foreign";
const KEYS: [&str; 2] = ["millrace-test", "not-a-secret-at-all"];

/// Ended with the test.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The program versitygw, built if need be.
fn versitygw() -> Option<PathBuf> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts/build-versitygw");
    let built = Command::new(script).output().unwrap();
    let has_curl = Command::new("curl").arg("--version").output().is_ok();
    if built.status.success() && has_curl {
        return Some(String::from_utf8(built.stdout).unwrap().trim().into());
    }
    let why = String::from_utf8_lossy(&built.stderr).lines().last().unwrap_or("there is no curl").to_owned();
    let _ = writeln!(std::io::stderr(), "skipped: millrace local against versitygw: {why}");
    None
}

/// A signed request.
fn put(endpoint: &str, key: &str, file: Option<&Path>) {
    let mut curl = Command::new("curl");
    curl.args(["-sS", "--fail-with-body", "--noproxy", "*", "--aws-sigv4", "aws:amz:us-east-1:s3"]).args([
        "-H",
        "x-amz-content-sha256: UNSIGNED-PAYLOAD",
        "--user",
        &KEYS.join(":"),
    ]);
    match file {
        Some(file) => curl.arg("-T").arg(file),
        None => curl.args(["-X", "PUT"]),
    };
    let output = curl.arg(format!("{endpoint}/{BUCKET}{key}")).output().unwrap();
    assert!(output.status.success(), "{key}: {output:?}");
}

#[test]
fn a_foreign_server_is_listed_warmed_and_read() {
    if !can_run() {
        return;
    }
    let Some(program) = versitygw() else { return };
    let mut rig = Rig::new();
    let root = rig.dir.path().join("root");
    std::fs::create_dir(&root).unwrap();
    // Free a moment ago; the server takes none by itself.
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let log = std::fs::File::create(rig.dir.path().join("versitygw.log")).unwrap();
    let server = Command::new(program)
        .args(["--access", KEYS[0], "--secret", KEYS[1], "--port", &address.to_string(), "posix"])
        .arg(root)
        .stdin(Stdio::null())
        .stdout(log.try_clone().unwrap())
        .stderr(log)
        .spawn();
    let mut server = Server(server.unwrap());
    until("versitygw", || {
        assert!(server.0.try_wait().unwrap().is_none(), "versitygw has ended");
        TcpStream::connect(address).is_ok()
    });
    let endpoint = format!("http://{address}");
    put(&endpoint, "", None);
    let files = [("a.bin", 3_000_000), ("sub/b.txt", 1000), ("sub/c d.txt", 0)];
    for (seed, (key, length)) in (0..).zip(files) {
        rig.write("body", "");
        std::fs::write(rig.dir.path().join("body"), body(seed, length)).unwrap();
        put(&endpoint, &format!("/{}", key.replace(' ', "%20")), Some(&rig.dir.path().join("body")));
    }
    let [id, secret] = KEYS;
    let more = format!(
        "---\napiVersion: v1\nkind: Secret\nmetadata: {{name: keys}}\nstringData: {{AWS_ACCESS_KEY_ID: {id}, AWS_SECRET_ACCESS_KEY: {secret}}}\n"
    );
    let dataset = rig
        .dataset(&more)
        .replace(&rig.server.endpoint(), &endpoint)
        .replace("bucket: data", &format!("bucket: {BUCKET}"))
        .replace("anonymous: {}", "secretRef: {name: keys}");
    rig.write("dataset.yaml", &dataset);
    rig.up();
    for (seed, (key, length)) in (0..).zip(files) {
        assert!(std::fs::read(rig.mount().join(key)).unwrap() == body(seed, length), "{key}");
    }
    until("warm", || rig.condition("Warm").1 == "Warmed");
    rig.ok(&["down"]);
    rig.wait_up();
    rig.assert_nothing_left();
}
