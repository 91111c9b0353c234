//! The tests, by what they show.

mod at_rest;
mod bed;
mod chart;
mod deletion;
mod examples;
mod faults;
mod kills;
mod main_job;
mod node_cache;
mod nodes;
mod plugin;
mod refused;
mod rights;
mod webhook;
