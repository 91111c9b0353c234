//! The tests, by what they show.

mod bed;
mod chart;
mod cures;
mod deletion;
mod examples;
mod faults;
mod frozen;
mod fuse;
mod identity;
mod lasting;
mod leaks;
mod kills;
mod main_job;
mod node_cache;
mod nodes;
mod peers;
mod plugin;
mod refused;
mod rights;
mod versions;
mod webhook;
