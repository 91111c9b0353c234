//! Under which name was the program called?
//!
//! As `kubectl-millrace` it is a plug-in of kubectl, and its help speaks of `kubectl millrace`. As `kubectl_complete-millrace` kubectl
//! asks it for completions. As `csi-driver` it is the csi-driver: their image holds one file for both.

use std::ffi::OsString;
use std::path::Path;

use clap::{CommandFactory, FromArgMatches};

use crate::args::Cli;

/// Under which name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Name {
    /// Any other.
    Millrace,
    /// A plug-in of kubectl.
    KubectlPlugin,
    /// What kubectl asks for the plug-in's completions.
    KubectlCompletion,
    /// The csi-driver.
    CsiDriver,
}

/// The name in the first argument.
pub fn name(program: Option<&OsString>) -> Name {
    match program.and_then(|program| Path::new(program).file_name()).and_then(|name| name.to_str()) {
        Some("kubectl-millrace") => Name::KubectlPlugin,
        Some("kubectl_complete-millrace") => Name::KubectlCompletion,
        Some(millrace_csi_driver::program::NAME) => Name::CsiDriver,
        _ => Name::Millrace,
    }
}

/// Parses the arguments, and ends the program where they are wrong or help is asked for.
pub fn parse(name: Name) -> Cli {
    let command = match name {
        // The csi-driver parses its own.
        Name::Millrace | Name::CsiDriver => Cli::command(),
        Name::KubectlPlugin | Name::KubectlCompletion => Cli::command().bin_name("kubectl millrace"),
    };
    let parsed = Cli::from_arg_matches(&command.get_matches());
    parsed.unwrap_or_else(|error| error.exit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_is_that_of_the_file() {
        let of = |program: &str| name(Some(&OsString::from(program)));
        assert_eq!(of("/usr/local/bin/kubectl-millrace"), Name::KubectlPlugin);
        assert_eq!(of("kubectl_complete-millrace"), Name::KubectlCompletion);
        assert_eq!(of("./millrace"), Name::Millrace);
        assert_eq!(of("/csi-driver"), Name::CsiDriver);
        assert_eq!(name(None), Name::Millrace);
    }
}
