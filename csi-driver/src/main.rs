//! The program `csi-driver`.

use std::process::ExitCode;

use millrace_csi_driver::program;

/// Returns freed memory to the kernel sooner than glibc's, and does not grow with the number of threads.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    program::run()
}
