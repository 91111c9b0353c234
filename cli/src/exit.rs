//! With which code and message does the program end?

use std::io::{ErrorKind, Write};
use std::process::ExitCode;

/// For the end of `--help`: the codes that scripts may rely on. 2 is clap's own.
pub const CODES: &str = "Exit codes:\n  \
    0  done\n  \
    1  what was asked for could not be done, or some of it failed; the message says what and how to cure it\n  \
    2  the arguments are wrong\n  \
    3  the dataset is not running";

/// What was asked for needs a dataset that runs, and it does not.
#[derive(Debug, thiserror::Error)]
#[error("dataset {name:?} is not running: start it with `millrace local up -f FILE`")]
pub struct NotRunning {
    /// Namespace and name.
    pub name: String,
}

/// Something failed that has been printed already.
#[derive(Debug, thiserror::Error)]
#[error("failed")]
pub struct Told;

/// Prints what went wrong on one line, and gives the code.
pub fn code(done: anyhow::Result<()>) -> ExitCode {
    let Err(error) = done else { return ExitCode::SUCCESS };
    if !error.is::<Told>() {
        eprintln!("millrace: {error:#}");
    }
    if error.is::<NotRunning>() { ExitCode::from(3) } else { ExitCode::FAILURE }
}

/// Prints to stdout; a reader that has gone, as in `millrace crd | head`, is no failure.
///
/// # Errors
/// Where stdout cannot be written otherwise.
pub fn print(text: &str) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(()),
    }
}
