//! Does it work with an S3 server that is not ours?

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use millrace_s3_server::backend::memory::InMemory;
use millrace_s3_server::synthetic;
use millrace_tests::cluster::{BUCKET, Cluster, MIB, Setup, source};
use millrace_tests::content::Files;
use millrace_tests::mounted::{MountSetup, Mounted};
use millrace_tests::program::{Program, command};
use millrace_tests::skip::{can_mount, has_programs, output_of, skipped};

const ACCESS_KEY: &str = "millrace-test";
const SECRET_KEY: &str = "not-a-secret-at-all";

/// The program, built if need be; `None` where it cannot be.
fn versitygw(test: &str) -> Option<PathBuf> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts/build-versitygw");
    let output = Command::new(script).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    if output.status.success() {
        return Some(PathBuf::from(String::from_utf8_lossy(&output.stdout).trim()));
    }
    let last = said.lines().last().unwrap_or("nothing said").to_owned();
    skipped(test, &format!("versitygw cannot be built: {last}"));
    None
}

/// A signed request.
fn request(endpoint: &str, key: &str, args: &[&str]) {
    let mut command = Command::new("curl");
    command
        .args(["-sS", "--fail-with-body", "--noproxy", "*", "--aws-sigv4", "aws:amz:us-east-1:s3"])
        // Older curl does not send it by itself.
        .args(["-H", "x-amz-content-sha256: UNSIGNED-PAYLOAD"])
        .args(["--user", &format!("{ACCESS_KEY}:{SECRET_KEY}")])
        .args(args)
        .arg(format!("{endpoint}/{BUCKET}{key}"));
    output_of(&mut command);
}

#[test]
fn foreign_server_is_listed_and_read_byte_for_byte() {
    let name = "foreign_server_is_listed_and_read_byte_for_byte";
    if !can_mount(name) || !has_programs(name, &["curl"]) {
        return;
    }
    let Some(program) = versitygw(name) else { return };
    let mut cluster = Cluster::without_index(InMemory::new(), &Setup::workers(2));
    let dir = cluster.new_dir("versitygw");
    std::fs::create_dir(dir.join("root")).unwrap();
    // Free a moment ago; the server takes none by itself.
    let address = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let mut server = command(program);
    server.args(["--access", ACCESS_KEY, "--secret", SECRET_KEY, "--port", &address.to_string(), "posix"]);
    let mut server = Program::start(server.arg(dir.join("root")), &dir.join("log"));
    server.wait_for("the server", Duration::from_secs(20), || std::net::TcpStream::connect(address).ok());

    let endpoint = format!("http://{address}");
    let files = Files::new().with_many("dir", 20, 30_000).with("large", 3 * MIB + 5).with("deep/er/empty", 0);
    request(&endpoint, "", &["-X", "PUT"]);
    for (key, size) in &files.0 {
        let mut body = vec![0; *size as usize];
        synthetic::fill(key, 0, &mut body);
        let body_file = dir.join("body");
        std::fs::write(&body_file, body).unwrap();
        request(&endpoint, &format!("/{key}"), &["-T", body_file.to_str().unwrap()]);
    }
    for worker in &cluster.workers {
        let credentials = worker.dir.join("credentials/s3");
        std::fs::create_dir_all(&credentials).unwrap();
        std::fs::write(credentials.join("AWS_ACCESS_KEY_ID"), ACCESS_KEY).unwrap();
        std::fs::write(credentials.join("AWS_SECRET_ACCESS_KEY"), SECRET_KEY).unwrap();
    }
    let mut signed = source(&endpoint);
    (signed.anonymous, signed.credentials, signed.region) = (false, "s3".to_owned(), "us-east-1".to_owned());
    cluster.make_index(&[signed]);
    assert_eq!((cluster.made.objects, cluster.made.bytes), (files.0.len() as u64, files.bytes()));
    let mounted = Mounted::start(&cluster, &MountSetup::default());
    files.check(&mounted.point);
    cluster.assert_quiet();
}
