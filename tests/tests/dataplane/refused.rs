//! Does a mount process that cannot serve say which thing is wrong?

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use millrace_tests::cluster::Cluster;
use millrace_tests::content::Files;
use millrace_tests::mounted::{MountSetup, Mounted, is_mounted, mount};
use millrace_tests::program::{Program, command, path_of};
use millrace_tests::skip::{can_mount, can_mount_as_root, has_programs, is_root, skipped};

/// What the process says when it ends; it must, and with an error.
fn refusal(cluster: &Cluster, point: &Path, args: &[(&str, &str)]) -> String {
    let dir = cluster.new_dir("refused");
    let setup = args.iter().fold(MountSetup::default(), |setup, (name, value)| setup.arg(name, *value));
    let mut command = mount(cluster, point, &dir, &setup);
    end_of(&mut command, &dir.join("log"))
}

/// What a program says that must end with an error.
fn end_of(command: &mut Command, log: &Path) -> String {
    let mut program = Program::start(command, log);
    let status = program.wait_for_end(Duration::from_secs(15));
    assert!(!status.success(), "{}", program.log());
    program.log()
}

fn assert_names(log: &str, things: &[&str]) {
    let last = log.lines().last().unwrap_or_default();
    for thing in things {
        assert!(last.contains(thing), "{thing:?} is not in {last:?} at the end of {log}");
    }
}

#[test]
fn mount_points_that_cannot_be_used_are_named() {
    if !can_mount("mount_points_that_cannot_be_used_are_named") {
        return;
    }
    let cluster = Cluster::of(Files::new().with("file", 100).objects());
    let dir = cluster.new_dir("points");
    let missing = dir.join("missing");
    assert_names(&refusal(&cluster, &missing, &[]), &[missing.to_str().unwrap(), "does not exist"]);
    let full = dir.join("full");
    std::fs::create_dir_all(full.join("something")).unwrap();
    assert_names(&refusal(&cluster, &full, &[]), &[full.to_str().unwrap(), "not empty"]);
    let file = dir.join("file");
    std::fs::write(&file, "").unwrap();
    assert_names(&refusal(&cluster, &file, &[]), &[file.to_str().unwrap(), "not a directory"]);
    let mounted = Mounted::start(&cluster, &MountSetup::default());
    assert_names(
        &refusal(&cluster, &mounted.point, &[]),
        &[mounted.point.to_str().unwrap(), "busy", "millrace:data"],
    );
    assert!(is_mounted(&mounted.point), "the one that was there stays");
    std::fs::read(mounted.path("file")).unwrap();
}

#[test]
fn wrong_keys_versions_files_and_ports_are_named() {
    if !can_mount("wrong_keys_versions_files_and_ports_are_named") {
        return;
    }
    let cluster = Cluster::of(Files::new().with("file", 100).objects());
    let point = cluster.new_dir("point");
    let wrong = cluster.dir().join("wrong.key");
    std::fs::write(&wrong, "ab".repeat(32)).unwrap();
    let soon = ("--read-deadline-seconds", "1");
    let log = refusal(&cluster, &point, &[("--data-key-file", wrong.to_str().unwrap()), soon]);
    assert_names(&log, &["wrong key", "w-0"]);
    let none = cluster.dir().join("none.key");
    assert_names(&refusal(&cluster, &point, &[("--data-key-file", none.to_str().unwrap())]), &["none.key"]);
    let unknown = "0123456789abcdef0123456789abcdef";
    assert_names(&refusal(&cluster, &point, &[("--version", unknown), soon]), &[unknown]);
    assert_names(&refusal(&cluster, &point, &[("--version", "latest")]), &["--version"]);
    let members = cluster.dir().join("members.json");
    std::fs::write(&members, "{}").unwrap();
    let log = refusal(&cluster, &point, &[("--membership-file", members.to_str().unwrap())]);
    assert_names(&log, &["members.json", "epoch"]);
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    assert_names(&refusal(&cluster, &point, &[("--admin-address", &address)]), &[&address]);
    assert!(!is_mounted(&point));
}

#[test]
fn machine_without_fuse_is_told_what_is_missing() {
    let name = "machine_without_fuse_is_told_what_is_missing";
    if !can_mount_as_root(name) || !has_programs(name, &["unshare"]) {
        return;
    }
    let cluster = Cluster::of(Files::new().with("file", 100).objects());
    let dir = cluster.new_dir("refused");
    let point = cluster.new_dir("point");
    let wanted = mount(&cluster, &point, &dir, &MountSetup::default());
    let mut hidden = Command::new("unshare");
    // There is no more in /dev than every container has, for this process alone.
    hidden.args(["--mount", "--propagation", "private", "sh", "-c"]);
    let script = "mount -t tmpfs none /dev && mknod -m 666 /dev/null c 1 3 && mknod -m 666 /dev/random c 1 8 && \
                  mknod -m 666 /dev/urandom c 1 9 && exec \"$@\"";
    hidden.args([script, "sh"]);
    hidden.arg(wanted.get_program()).args(wanted.get_args()).stdin(std::process::Stdio::null());
    assert_names(&end_of(&mut hidden, &dir.join("log")), &["/dev/fuse", "modprobe fuse"]);
}

#[test]
fn file_limit_that_is_too_low_is_named_with_the_cure() {
    let name = "file_limit_that_is_too_low_is_named_with_the_cure";
    if !has_programs(name, &["prlimit", "setpriv"]) {
        return;
    }
    if !is_root() {
        return skipped(name, "needs root to become an ordinary user with a low limit");
    }
    let dir = tempfile::tempdir().unwrap();
    let open = |path: &Path| {
        use std::os::unix::fs::PermissionsExt;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
    };
    open(dir.path());
    std::fs::write(dir.path().join("key"), "ab".repeat(32)).unwrap();
    let key = dir.path().join("key");
    // A copy: the build folder may be closed to others.
    let program = dir.path().join("cache-worker");
    std::fs::copy(path_of("cache-worker"), &program).unwrap();
    open(&program);
    let mut command = command("prlimit");
    command
        .args(["--nofile=256:256", "setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"])
        .arg(&program)
        .args(["serve", "--name", "w-0", "--dataset-uid", "uid"])
        .arg("--data-key-file")
        .arg(&key)
        .arg("--control-key-file")
        .arg(&key)
        .arg("--state-dir")
        .arg(dir.path().join("state"))
        .arg("--tier")
        .arg(format!("medium=Disk,dir={},quota=1Gi", dir.path().join("tier").display()))
        .current_dir("/");
    assert_names(&end_of(&mut command, &dir.path().join("log")), &["256", "4096", "ulimit -n"]);
}
