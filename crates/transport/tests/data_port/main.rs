//! Does the data port keep its promises over real sockets?

mod double;
mod faults;
mod frames;
mod hello;
mod index;
mod reads;
mod stop;
