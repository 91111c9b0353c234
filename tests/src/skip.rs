//! What can a test not have here, and how does it say so?

use std::io::Write;
use std::path::Path;
use std::process::Command;

/// Says that a test is skipped, past the capture of a test's output: the closing summary collects these lines.
pub fn skipped(name: &str, why: &str) {
    // Nobody is left to tell where standard error is closed.
    let _ = writeln!(std::io::stderr(), "\nskipped: {name}: {why}");
}

/// Whether this process is root.
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Whether FUSE file systems can be mounted here; says so where not.
pub fn can_mount(name: &str) -> bool {
    let has_device = std::fs::OpenOptions::new().read(true).write(true).open("/dev/fuse").is_ok();
    if !has_device {
        skipped(name, "/dev/fuse cannot be opened");
        return false;
    }
    if !is_root() && !has_program("fusermount3") {
        skipped(name, "an ordinary user needs fusermount3 to mount");
        return false;
    }
    true
}

/// Whether a test that needs root and mounts can run here; says so where not.
pub fn can_mount_as_root(name: &str) -> bool {
    if !is_root() {
        skipped(name, "needs root");
        return false;
    }
    can_mount(name)
}

/// Whether a program is in PATH.
pub fn has_program(name: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|dir| is_program(&dir.join(name)))
}

fn is_program(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    path.metadata().is_ok_and(|metadata| metadata.is_file() && metadata.permissions().mode() & 0o111 != 0)
}

/// Whether programs are installed; names the missing ones where not.
pub fn has_programs(test: &str, names: &[&str]) -> bool {
    let missing: Vec<&str> = names.iter().copied().filter(|name| !has_program(name)).collect();
    if !missing.is_empty() {
        skipped(test, &format!("{} is not installed", missing.join(", ")));
    }
    missing.is_empty()
}

/// Output of a program that must succeed.
pub fn output_of(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {}: {errors}", output.status);
    String::from_utf8_lossy(&output.stdout).into_owned()
}
