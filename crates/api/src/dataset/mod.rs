//! What does a user ask for, and what is told back? The custom resource `Dataset`.
//!
//! [`spec`] and [`status`] are the types that the CRD is printed from ([`crd`]); [`rules`] says in CEL what the API server
//! refuses; [`check`] applies the same rules without one; [`manifest`] reads a user's file.

pub mod check;
pub mod conditions;
pub mod crd;
pub mod credentials;
pub mod globs;
pub mod manifest;
pub mod mount;
pub mod rules;
pub mod schema;
pub mod sizes;
pub mod spec;
pub mod status;
pub mod template;

#[cfg(test)]
mod tests;
