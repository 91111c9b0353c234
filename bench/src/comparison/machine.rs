//! On what was it measured?

use anyhow::Result;
use serde::{Deserialize, Serialize};

use crate::cases::scene::disk_note;
use crate::lab::Lab;

/// What of a machine bears on results, and nothing that names it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// Version of the kernel.
    pub kernel: String,
    /// Processors that this program may use.
    pub processors: usize,
    /// What they call themselves.
    pub model: String,
    /// Whether they are those of a virtual machine.
    pub is_virtual: bool,
    /// Memory, bytes.
    pub memory_bytes: u64,
    /// What the disk does.
    pub disk: String,
}

impl Machine {
    /// Looks at this machine.
    ///
    /// # Errors
    /// Where the disk cannot be written.
    pub fn look(lab: &Lab) -> Result<Self> {
        let read = |file: &str| std::fs::read_to_string(file).unwrap_or_default();
        let (cpu, memory) = (read("/proc/cpuinfo"), read("/proc/meminfo"));
        let kib = field(&memory, "MemTotal").and_then(|text| text.strip_suffix("kB")?.trim().parse().ok());
        Ok(Self {
            kernel: kernel(),
            processors: std::thread::available_parallelism().map_or(1, usize::from),
            model: field(&cpu, "model name").unwrap_or("unknown").to_owned(),
            is_virtual: field(&cpu, "flags")
                .is_some_and(|flags| flags.split(' ').any(|flag| flag == "hypervisor")),
            memory_bytes: kib.map_or(0, |kib: u64| kib * 1024),
            disk: disk_note(lab)?,
        })
    }

    /// In words.
    pub fn words(&self) -> String {
        let Self { kernel, processors, model, is_virtual, memory_bytes, disk } = self;
        let kind = if *is_virtual { "a virtual machine" } else { "a machine" };
        let gib = *memory_bytes as f64 / f64::from(1 << 30);
        format!(
            "{kind} with {processors} processors ({model}), {gib:.0} GiB of memory, Linux {kernel}; {disk}"
        )
    }
}

/// The kernel's version without what whoever built it added.
pub fn kernel() -> String {
    number(&std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default()).to_owned()
}

fn number(release: &str) -> &str {
    let end = release.find(|letter: char| !letter.is_ascii_digit() && letter != '.');
    release[..end.unwrap_or(release.len())].trim_end_matches('.')
}

/// The first value of a name in a text of lines `name : value`.
fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let pairs = text.lines().filter_map(|line| line.split_once(':'));
    pairs
        .map(|(known, value)| (known.trim(), value.trim()))
        .find(|(known, _)| *known == name)
        .map(|pair| pair.1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_is_told_without_its_builder() {
        assert_eq!(["6.8.0-47-generic", "6.1.", "5.10", ""].map(number), ["6.8.0", "6.1", "5.10", ""]);
        assert!(!kernel().is_empty());
    }

    #[test]
    fn fields_are_found_by_their_whole_name() {
        let text = "model\t\t: 1\nmodel name\t: A : B\n";
        assert_eq!((field(text, "model name"), field(text, "name")), (Some("A : B"), None));
    }
}
