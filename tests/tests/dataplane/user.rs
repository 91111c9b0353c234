//! Can an ordinary user mount and read?

use std::os::unix::fs::{PermissionsExt, chown};
use std::process::Command;

use millrace_tests::cluster::{Cluster, MIB};
use millrace_tests::content::Files;
use millrace_tests::mounted::{MountSetup, mount};
use millrace_tests::program::path_of;
use millrace_tests::skip::{can_mount_as_root, has_programs};

/// The user `nobody`.
const NOBODY: u32 = 65_534;

/// Mounts, copies all, and asks the mount process to end; as the user, in a mount namespace of its own, where the device
/// is open to all as it usually is.
const SCRIPT: &str = r#"
dir=$1; shift
"$@" 2> "$dir/log" &
pid=$!
tries=0
while [ ! -e "$dir/addresses.json" ]; do
  tries=$((tries + 1))
  if [ $tries -gt 300 ] || ! kill -0 $pid; then cat "$dir/log" >&2; exit 1; fi
  sleep 0.1
done
cp -r "$dir/point" "$dir/copy"
chmod -R u+w "$dir/copy"
kill -TERM $pid
wait $pid || { cat "$dir/log" >&2; exit 1; }
! grep -q " $dir/point " /proc/self/mountinfo
"#;

#[test]
fn ordinary_user_mounts_reads_and_unmounts() {
    let name = "ordinary_user_mounts_reads_and_unmounts";
    if !can_mount_as_root(name) || !has_programs(name, &["fusermount3", "unshare", "setpriv"]) {
        return;
    }
    let files = Files::new().with_many("dir", 20, 30_000).with("large", 3 * MIB);
    let cluster = Cluster::of(files.objects());
    let dir = cluster.new_dir("user");
    std::fs::create_dir(dir.join("point")).unwrap();
    for path in [cluster.dir(), &dir, &dir.join("point")] {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }
    chown(&dir, Some(NOBODY), Some(NOBODY)).unwrap();
    chown(dir.join("point"), Some(NOBODY), Some(NOBODY)).unwrap();
    // A copy: the build folder may be closed to others.
    let program = cluster.dir().join("csi-driver");
    std::fs::copy(path_of("csi-driver"), &program).unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    let setup = MountSetup::keeping(dir.join("store")).arg("--mode", "Files");
    let args = mount(&cluster, &dir.join("point"), &dir, &setup);
    let outer = "mknod -m 666 \"$1/fuse\" c 10 229 && mount --bind \"$1/fuse\" /dev/fuse && shift && \
                 exec setpriv --reuid=65534 --regid=65534 --clear-groups sh -c \"$@\"";
    let output = Command::new("unshare")
        .args(["--mount", "--propagation", "private", "sh", "-c", outer, "sh"])
        .arg(cluster.dir())
        .args([SCRIPT, "sh"])
        .arg(&dir)
        .arg(&program)
        // Behind setpriv and the program.
        .args(args.get_args().skip_while(|arg| *arg != "mount"))
        .current_dir("/")
        .output()
        .unwrap();
    assert!(output.status.success(), "{}: {}", output.status, String::from_utf8_lossy(&output.stderr));
    files.check(&dir.join("copy"));
    let log = std::fs::read_to_string(dir.join("log")).unwrap();
    assert!(log.contains("privilege"), "why the kernel does not read files itself: {log}");
}
