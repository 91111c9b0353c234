//! The tests, by what they show.

mod bed;
mod chart;
mod deletion;
mod faults;
mod main_job;
mod refused;
mod rights;
