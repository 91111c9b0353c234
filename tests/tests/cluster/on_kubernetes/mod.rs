//! The tests, by what they show.

mod bed;
mod deletion;
mod faults;
mod main_job;
mod refused;
mod rights;
