//! Does the data port keep its promises over real sockets?

#![expect(clippy::unwrap_used, reason = "a helper of a test panics as the test does")]

mod double;
mod faults;
mod frames;
mod hello;
mod index;
mod reads;
mod relay;
mod sending;
mod service;
mod silence;
mod stop;
mod version_1;
