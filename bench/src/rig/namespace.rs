//! How is a process put behind a network link of its own, as if on another machine?

use std::fs::File;
use std::net::Ipv4Addr;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// A network namespace whose only link leads here: a veth pair with an address at each end. Removed with this value, after
/// the processes in it.
#[derive(Debug)]
pub struct Namespace {
    name: String,
    here: Ipv4Addr,
}

impl Namespace {
    /// Makes namespace and link.
    ///
    /// # Errors
    /// Where this user may not, or there is no program `ip`.
    pub fn new() -> Result<Self> {
        let pid = std::process::id();
        let name = format!("mr-bench-{pid}");
        let (outer, inner) = (format!("mrb{pid}o"), format!("mrb{pid}i"));
        let [here, there] = addresses(pid);
        ip(&["netns", "add", &name])?;
        // From here on it goes with this value.
        let namespace = Self { name, here };
        let name = &*namespace.name;
        ip(&["link", "add", &outer, "type", "veth", "peer", "name", &inner, "netns", name])?;
        ip(&["address", "add", &format!("{here}/30"), "dev", &outer])?;
        ip(&["link", "set", &outer, "up"])?;
        ip(&["-n", name, "address", "add", &format!("{there}/30"), "dev", &inner])?;
        ip(&["-n", name, "link", "set", &inner, "up"])?;
        ip(&["-n", name, "link", "set", "lo", "up"])?;
        Ok(namespace)
    }

    /// The address by which this side is reached from the other.
    pub fn here(&self) -> Ipv4Addr {
        self.here
    }

    /// A command that runs `program` on the other side; in all else it is where this process is.
    pub fn command(&self, program: &Path) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net={}", self.path().display())).arg("--").arg(program);
        command
    }

    /// Does something on the other side: sockets that are made there stay there.
    ///
    /// # Errors
    /// Where the other side cannot be entered, and those of `work`.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        let path = self.path();
        std::thread::scope(|scope| {
            // Only this thread changes sides, and ends with it.
            let thread = scope.spawn(move || {
                let namespace = File::open(&path).with_context(|| format!("open {path:?}"))?;
                move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))
                    .with_context(|| format!("enter {path:?}"))?;
                work()
            });
            thread.join().unwrap_or_else(|_| bail!("a thread on the other side panicked"))
        })
    }

    fn path(&self) -> PathBuf {
        Path::new("/run/netns").join(&self.name)
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        // The link goes with the namespace.
        if let Err(error) = ip(&["netns", "delete", &self.name]) {
            eprintln!("  network namespace {} stays behind: {error:#}", self.name);
        }
    }
}

/// Two addresses of a network of four, of those that are set aside for benchmarks (RFC 2544); another one for each process.
fn addresses(pid: u32) -> [Ipv4Addr; 2] {
    let network = u32::from(Ipv4Addr::new(198, 18, 0, 0)) + (pid % (1 << 15)) * 4;
    [Ipv4Addr::from(network + 1), Ipv4Addr::from(network + 2)]
}

fn ip(args: &[&str]) -> Result<()> {
    let output = Command::new("ip").args(args).output().context("run the program ip")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "ip {}: {}", args.join(" "), said.trim());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ends_are_in_one_network_of_the_benchmarks() {
        for pid in [1, 32_767, 32_768, 4_194_304] {
            let [here, there] = addresses(pid);
            assert_eq!(u32::from(here) / 4, u32::from(there) / 4);
            assert!(here.octets()[0] == 198 && matches!(here.octets()[1], 18 | 19), "{here}");
        }
    }
}
