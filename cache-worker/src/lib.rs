//! The cache worker: pulls a dataset out of S3 once and serves its blocks.
