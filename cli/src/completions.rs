//! Which completions does a shell load?

use clap::CommandFactory;
use clap_complete::Shell;

/// Prints the completions of a shell.
///
/// # Errors
/// Where stdout cannot be written.
pub fn print(shell: Shell) -> anyhow::Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut crate::args::Cli::command(), "millrace", &mut script);
    crate::exit::print(&String::from_utf8_lossy(&script))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn completions_know_every_command() {
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut crate::args::Cli::command(), "millrace", &mut script);
            let script = String::from_utf8(script).unwrap();
            for command in ["status", "why", "warm", "local", "s3", "bench", "validate", "crd", "completions"]
            {
                assert!(script.contains(command), "{shell}: {command}");
            }
        }
    }
}
