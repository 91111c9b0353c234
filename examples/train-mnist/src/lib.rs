//! An example of a training job: how well does a small model learn MNIST from a folder?
//!
//! It knows nothing of Millrace. Each epoch opens and reads its files anew, as data loaders do: that is what a cache is for.

pub mod idx;
pub mod softmax;
