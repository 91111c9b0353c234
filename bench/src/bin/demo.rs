//! The program `demo`.
fn main() {}
