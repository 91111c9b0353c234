//! What every long-running Millrace process does alike: logging, admin port, shutdown, memory limits, small files, errors in a line.

pub mod admin;
pub mod causes;
pub mod files;
pub mod logging;
pub mod memory;
pub mod open_files;
pub mod process_metrics;
pub mod readiness;
pub mod shutdown;
