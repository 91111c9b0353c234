//! The program `operator` as a test on a cluster runs it: it ends at the point that `MILLRACE_FAULT_POINT` names.

#[path = "main.rs"]
mod program;

fn main() -> std::process::ExitCode {
    program::main()
}
