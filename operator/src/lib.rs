//! The operator: what must exist in the cluster so that each Dataset can be read?
