//! Tests of the Dataset as a whole.

mod fixed;
mod manifest;
mod rules;

use super::check::Problem;

#[track_caller]
fn assert_says(problems: &[Problem], field: &str, value: &str, cure: &str) {
    let found = problems.iter().find(|problem| problem.field == field);
    let message = &found.unwrap_or_else(|| panic!("no problem of {field} in {problems:#?}")).message;
    assert!(
        message.contains(value) && message.contains(cure),
        "{field}: {message:?} lacks {value:?} or {cure:?}"
    );
    assert!(!message.contains('\n'), "the API server allows no line breaks: {message:?}");
}
