//! Does the data port keep its promises over real sockets?

mod double;
mod reads;
