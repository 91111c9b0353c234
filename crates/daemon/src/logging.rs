//! How does a process log: which lines, in which form, where to?
//!
//! Lines go to stderr, so that stdout stays free for what a program prints. A panic is logged like any other error
//! before the default hook prints it, so that it is seen by whoever only collects JSON lines.

use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::ParseError;
use tracing_subscriber::util::TryInitError;

/// The form of a log line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    /// One line for people: time, level, message, fields.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

/// Flags for logging, to flatten into a program's arguments.
#[derive(Clone, Debug, clap::Args)]
pub struct LogArgs {
    /// Which lines are logged: a level, or directives such as `info,millrace_store=debug`.
    #[arg(long, env = "MILLRACE_LOG", default_value = "info", global = true, value_name = "FILTER")]
    pub log: String,
    /// Form of a log line.
    #[arg(
        long,
        env = "MILLRACE_LOG_FORMAT",
        value_enum,
        default_value_t,
        global = true,
        value_name = "FORMAT"
    )]
    pub log_format: LogFormat,
}

/// What can go wrong when logging is set up.
#[derive(Debug, thiserror::Error)]
pub enum LoggingError {
    /// The filter is not understood.
    #[error(
        "parse log filter {filter:?}: give a level (error, warn, info, debug, trace) or directives such as \"info,millrace_store=debug\""
    )]
    ParseFilter {
        /// The filter as given.
        filter: String,
        /// What the parser says.
        source: ParseError,
    },
    /// Logging was set up before in this process.
    #[error("install the log subscriber")]
    Install {
        /// What the subscriber says.
        source: TryInitError,
    },
}

/// Sets up logging to stderr for the whole process, and a panic hook that logs.
///
/// # Errors
/// [`LoggingError::ParseFilter`] when the filter is not understood, [`LoggingError::Install`] when called twice.
pub fn init(args: &LogArgs) -> Result<(), LoggingError> {
    use tracing_subscriber::util::SubscriberInitExt as _;

    let filter = parse_filter(&args.log)?;
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    match args.log_format {
        LogFormat::Text => {
            use std::io::IsTerminal as _;
            builder.with_ansi(std::io::stderr().is_terminal()).finish().try_init()
        }
        LogFormat::Json => builder.json().flatten_event(true).finish().try_init(),
    }
    .map_err(|source| LoggingError::Install { source })?;
    log_panics();
    Ok(())
}

fn parse_filter(filter: &str) -> Result<EnvFilter, LoggingError> {
    EnvFilter::builder()
        .parse(filter)
        .map_err(|source| LoggingError::ParseFilter { filter: filter.to_owned(), source })
}

fn log_panics() {
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        let place = panic.location().map(ToString::to_string).unwrap_or_default();
        let message = panic.payload_as_str().unwrap_or("panic without a message");
        let thread = std::thread::current();
        tracing::error!(thread = thread.name().unwrap_or("unnamed"), place, message, "panic");
        before(panic);
    }));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_that_is_not_understood_is_named_with_its_cure() {
        let error = parse_filter("millrace=loud").unwrap_err().to_string();
        assert!(error.contains("\"millrace=loud\"") && error.contains("error, warn, info"), "{error}");
    }

    #[test]
    fn logging_set_up_twice_is_an_error_not_a_panic() {
        let args = LogArgs { log: "warn".into(), log_format: LogFormat::Json };
        init(&args).unwrap();
        assert!(matches!(init(&args), Err(LoggingError::Install { .. })));
    }
}
