//! The program `operator`.

fn main() {}
