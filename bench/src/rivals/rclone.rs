//! How does rclone show a bucket?

use std::process::Command;

use anyhow::Result;

use super::{Contender, Place, Shown, foreign};
use crate::lab::Lab;

/// rclone with folders kept for long and nothing asked that takes a request for each file.
#[derive(Debug, Clone, Copy)]
pub struct Rclone;

/// What it is always told.
const OPTIONS: [&str; 10] = [
    "--read-only",
    "--config",
    "/dev/null",
    "--dir-cache-time",
    "1h",
    "--attr-timeout",
    "1h",
    "--no-checksum",
    "--no-modtime",
    "--vfs-fast-fingerprint",
];

impl Contender for Rclone {
    fn name(&self) -> &'static str {
        "rclone"
    }

    fn setup(&self) -> &'static str {
        "`--vfs-cache-mode full` on the disk without a bound, folders and attributes kept for an hour, `--no-modtime`, \
         `--no-checksum`, `--vfs-fast-fingerprint`"
    }

    fn version(&self, _: &Lab) -> Result<String> {
        Ok(foreign::version("rclone")?.trim_start_matches("rclone v").to_owned())
    }

    fn mount(&self, lab: &Lab, place: Place<'_>) -> Result<Box<dyn Shown>> {
        let Place { endpoint, bucket, native: _, cache } = place;
        foreign::mount(lab, self.name(), |point| {
            let mut command = Command::new("rclone");
            // rclone refuses to start where it is set.
            command.env_remove("AWS_CA_BUNDLE");
            let remote = format!(":s3,provider=Other,env_auth=false,endpoint='{endpoint}':{bucket}");
            command.arg("mount").arg(remote).arg(point).args(OPTIONS);
            match cache {
                Some(cache) => command.args(["--vfs-cache-mode", "full", "--cache-dir"]).arg(cache),
                None => command.args(["--vfs-cache-mode", "off"]),
            };
            command
        })
    }
}
