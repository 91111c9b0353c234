//! The tests, by what they show.

mod at_rest;
mod bed;
mod chart;
mod cures;
mod deletion;
mod examples;
mod faults;
mod frozen;
mod fuse;
mod identity;
mod kills;
mod lasting;
mod leaks;
mod main_job;
mod node_cache;
mod nodes;
mod peers;
mod plugin;
mod refused;
mod rights;
mod versions;
mod webhook;
