//! Is an object as we want it? Pure.
//!
//! The API server adds defaults to what we ask for and writes amounts in its own way, so that neither can be compared as it is:
//! all that is asked for must be there, and the hash of what was asked for must be the same, or a field that is asked for no
//! longer would stay.

use serde_json::Value;

use crate::build::APPLIED_ANNOTATION;

/// Whether `observed` has all of `wanted`, and was applied for exactly that.
pub fn is_applied(wanted: &Value, observed: &Value) -> bool {
    let hash = |object: &Value| {
        object.pointer("/metadata/annotations").and_then(|all| all.get(APPLIED_ANNOTATION)).cloned()
    };
    hash(wanted) == hash(observed) && contains(observed, wanted)
}

/// Whether all of `wanted` is in `observed`.
pub fn contains(observed: &Value, wanted: &Value) -> bool {
    match (observed, wanted) {
        (Value::Object(observed), Value::Object(wanted)) => wanted.iter().all(|(key, wanted)| {
            match observed.get(key) {
                Some(observed) => contains(observed, wanted),
                // What is empty is left away by the API server.
                None => is_empty(wanted),
            }
        }),
        (Value::Array(observed), Value::Array(wanted)) => match key_of(wanted) {
            // Others may have added entries, as an injector of sidecars does.
            Some(key) => wanted.iter().all(|wanted| {
                observed
                    .iter()
                    .any(|observed| observed.get(key) == wanted.get(key) && contains(observed, wanted))
            }),
            None => {
                observed.len() == wanted.len()
                    && observed.iter().zip(wanted).all(|(observed, wanted)| contains(observed, wanted))
            }
        },
        (observed, wanted) if observed == wanted => true,
        (observed, wanted) => match (amount(observed), amount(wanted)) {
            (Some(observed), Some(wanted)) => observed == wanted,
            _ => false,
        },
    }
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.is_empty(),
        Value::Bool(is) => !is,
        Value::Number(number) => number.as_i64() == Some(0),
    }
}

/// The field by which entries of a list are told apart, as in the API's own schemas; `None`: the list is one value.
fn key_of(list: &[Value]) -> Option<&'static str> {
    ["mountPath", "name"]
        .into_iter()
        .find(|key| !list.is_empty() && list.iter().all(|entry| entry.get(key).is_some()))
}

/// An amount in thousandths: `500m`, `1Gi`, `2`, `1.5`.
fn amount(value: &Value) -> Option<u128> {
    let text = match value {
        Value::String(text) => text.clone(),
        Value::Number(number) => number.to_string(),
        Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => return None,
    };
    let unit_at = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at_checked(unit_at)?;
    let thousandths: u128 = match unit {
        "m" => 1,
        "" => 1000,
        "k" => 1000 * 1000,
        "M" => 1000 * 1000_u128.pow(2),
        "G" => 1000 * 1000_u128.pow(3),
        "T" => 1000 * 1000_u128.pow(4),
        "P" => 1000 * 1000_u128.pow(5),
        "E" => 1000 * 1000_u128.pow(6),
        "Ki" => 1000 << 10,
        "Mi" => 1000 << 20,
        "Gi" => 1000 << 30,
        "Ti" => 1000 << 40,
        "Pi" => 1000 << 50,
        "Ei" => 1000 << 60,
        _ => return None,
    };
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.len() > 18 || fraction.len() > 9 {
        return None;
    }
    let digits = 10_u128.pow(u32::try_from(fraction.len()).ok()?);
    let scaled: u128 = format!("{whole}{fraction}").parse().ok()?;
    Some(scaled * thousandths / digits)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn defaults_of_the_server_are_no_difference() {
        let wanted =
            json!({"spec": {"replicas": 1, "ports": [{"name": "a", "port": 1}], "classes": [], "empty": ""}});
        let observed = json!({
            "spec": {"replicas": 1, "ports": [{"name": "b", "port": 2}, {"name": "a", "port": 1, "protocol": "TCP"}]},
            "status": {},
        });
        assert!(is_applied(&wanted, &observed));
    }

    #[test]
    fn amounts_are_compared_by_what_they_mean() {
        for (a, b) in [("1024Mi", "1Gi"), ("0.5", "500m"), ("2000000000", "2G"), ("1.5Gi", "1536Mi")] {
            assert!(is_applied(&json!({"memory": a}), &json!({"memory": b})), "{a} {b}");
        }
        assert!(is_applied(&json!({"cpu": "2"}), &json!({"cpu": 2})));
        assert!(!is_applied(&json!({"memory": "1Gi"}), &json!({"memory": "1G"})));
    }

    #[test]
    fn an_edit_by_hand_and_a_field_that_is_left_over_are_differences() {
        let wanted = json!({"metadata": {"annotations": {APPLIED_ANNOTATION: "x"}}, "spec": {"replicas": 2}});
        let mut observed = wanted.clone();
        assert!(is_applied(&wanted, &observed));
        observed["spec"]["replicas"] = json!(5);
        assert!(!is_applied(&wanted, &observed));
        observed["spec"] = json!({"replicas": 2, "more": true});
        observed["metadata"]["annotations"][APPLIED_ANNOTATION] = json!("older");
        assert!(!is_applied(&wanted, &observed));
        let args = |args: Value| json!({"args": args});
        assert!(!is_applied(&args(json!(["a", "b"])), &args(json!(["a"]))));
        assert!(!is_applied(&args(json!(["a"])), &args(json!(["a", "b"]))));
    }
}
