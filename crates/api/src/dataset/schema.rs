//! Does a value have the shape that the CRD's schema asks for? What an API server would check before its CEL rules, and, unlike
//! one, with the place of a misplaced field.

use serde_json::{Map, Value};

use super::check::Problem;
use super::sizes::ByteSize;

/// Problems that are listed; a file with more is another kind of file.
pub const MAX_PROBLEMS: usize = 50;

/// Checks `value`, found at `path`, against `schema`. Empty: it fits.
pub fn check(schema: &Value, value: &Value, path: &str) -> Vec<Problem> {
    let mut walk = Walk { root: schema, root_path: path, problems: Vec::new() };
    walk.value(schema, value, path);
    walk.problems
}

/// Removes fields that are null, as the API server does for those that may not be.
pub fn drop_nulls(value: &mut Value) {
    match value {
        Value::Object(map) => {
            map.retain(|_, value| !value.is_null());
            map.values_mut().for_each(drop_nulls);
        }
        Value::Array(list) => list.iter_mut().for_each(drop_nulls),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

struct Walk<'a> {
    root: &'a Value,
    root_path: &'a str,
    problems: Vec<Problem>,
}

impl Walk<'_> {
    fn report(&mut self, path: &str, value: &Value, message: String) {
        if self.problems.len() < MAX_PROBLEMS {
            self.problems.push(Problem::new(path, value, message));
        }
    }

    fn value(&mut self, schema: &Value, value: &Value, path: &str) {
        if schema.get("x-kubernetes-int-or-string").is_some() {
            // Sizes say that they are not below zero; amounts, of which a size is one, do not.
            return if schema.get("minimum").is_some() {
                self.size(value, path)
            } else {
                self.amount(value, path)
            };
        }
        match (schema.get("type").and_then(Value::as_str), value) {
            (Some("object"), Value::Object(map)) => self.object(schema, map, value, path),
            (Some("array"), Value::Array(list)) => self.list(schema, list, value, path),
            (Some("string"), Value::String(text)) => self.text(schema, text, value, path),
            (Some("integer"), Value::Number(number)) => self.integer(schema, number.as_i64(), value, path),
            (Some("boolean"), Value::Bool(_)) | (None, _) => {}
            (Some(wanted), _) => self.report(path, value, wrong_type(wanted, value)),
        }
    }

    fn object(&mut self, schema: &Value, map: &Map<String, Value>, value: &Value, path: &str) {
        if schema.get("x-kubernetes-preserve-unknown-fields") == Some(&Value::Bool(true)) {
            return;
        }
        if let Some(each) = schema.get("additionalProperties").filter(|each| each.is_object()) {
            self.bounds(schema, map.len() as i64, ("minProperties", "maxProperties"), "entries", value, path);
            for (name, value) in map {
                self.value(each, value, &format!("{path}.{name}"));
            }
            return;
        }
        let none = Map::new();
        let properties = schema.get("properties").and_then(Value::as_object).unwrap_or(&none);
        for (name, value) in map {
            let path = format!("{path}.{name}");
            match properties.get(name) {
                Some(schema) => self.value(schema, value, &path),
                None => {
                    let cure = self.cure_of_unknown(name, properties);
                    self.report(&path, value, format!("unknown field {name:?}: {cure}"));
                }
            }
        }
        for name in
            schema.get("required").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str)
        {
            if !map.contains_key(name) {
                self.report(path, value, format!("field {name:?} is missing: add it"));
            }
        }
    }

    /// What to do about an unknown field: a near name, the place where it belongs, or the names there are.
    fn cure_of_unknown(&self, name: &str, properties: &Map<String, Value>) -> String {
        if let Some(near) = nearest(name, properties.keys().map(String::as_str)) {
            return format!("did you mean {near:?}?");
        }
        if let Some(place) = place_of(self.root, self.root_path, name) {
            return format!("it belongs in {place}");
        }
        if properties.is_empty() {
            return "leave it away, no fields are known here".to_owned();
        }
        let known: Vec<&str> = properties.keys().map(String::as_str).collect();
        format!("leave it away, or use one of {}", known.join(", "))
    }

    fn list(&mut self, schema: &Value, list: &[Value], value: &Value, path: &str) {
        self.bounds(schema, list.len() as i64, ("minItems", "maxItems"), "entries", value, path);
        if let Some(items) = schema.get("items") {
            for (at, item) in list.iter().enumerate() {
                self.value(items, item, &format!("{path}[{at}]"));
            }
        }
    }

    fn text(&mut self, schema: &Value, text: &str, value: &Value, path: &str) {
        if let Some(words) = schema.get("enum").and_then(Value::as_array) {
            if !words.contains(value) {
                let words: Vec<&str> = words.iter().filter_map(Value::as_str).collect();
                self.report(
                    path,
                    value,
                    format!("{text:?} is not known here: write one of {}", words.join(", ")),
                );
            }
            return;
        }
        self.bounds(
            schema,
            text.chars().count() as i64,
            ("minLength", "maxLength"),
            "characters",
            value,
            path,
        );
    }

    fn integer(&mut self, schema: &Value, number: Option<i64>, value: &Value, path: &str) {
        match number {
            None => {
                self.report(path, value, format!("{value} is not a whole number: write one without fraction"))
            }
            Some(number) => self.bounds(schema, number, ("minimum", "maximum"), "", value, path),
        }
    }

    fn size(&mut self, value: &Value, path: &str) {
        match value {
            Value::String(text) => {
                if let Err(error) = text.parse::<ByteSize>() {
                    self.report(path, value, error.to_string());
                }
            }
            Value::Number(number) if number.is_u64() => {}
            other => {
                self.report(path, other, format!("{other} is not a size in bytes: write one such as 50Gi"))
            }
        }
    }

    fn amount(&mut self, value: &Value, path: &str) {
        let is_amount = match value {
            Value::String(text) => is_amount(text),
            Value::Number(number) => number.is_u64(),
            Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => false,
        };
        if !is_amount {
            self.report(path, value, format!("{value} is not an amount: write one such as 500m, 2 or 4Gi"));
        }
    }

    fn bounds(
        &mut self,
        schema: &Value,
        number: i64,
        names: (&str, &str),
        of: &str,
        value: &Value,
        path: &str,
    ) {
        // The derive prints bounds of integers as floating point.
        let bound = |name: &str| schema.get(name).and_then(Value::as_f64).map(|bound| bound as i64);
        let (least, most) = (bound(names.0), bound(names.1));
        if least.is_none_or(|least| number >= least) && most.is_none_or(|most| number <= most) {
            return;
        }
        let range = match (least, most) {
            (Some(least), Some(most)) => format!("{least} to {most}"),
            (Some(least), None) => format!("at least {least}"),
            (None, Some(most)) => format!("at most {most}"),
            (None, None) => return,
        };
        let message = match of {
            "" => format!("{number} is out of range: give {range}"),
            of => format!("{number} {of} are not allowed: give {range}"),
        };
        self.report(path, value, message);
    }
}

/// As the pattern of amounts says.
fn is_amount(text: &str) -> bool {
    let unit_at = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(unit_at);
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let is_number = match number.split_once('.') {
        Some((whole, fraction)) => digits(whole) && digits(fraction),
        None => digits(number),
    };
    let units = ["", "n", "u", "m", "k", "M", "G", "T", "P", "E", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
    is_number && units.contains(&unit)
}

fn wrong_type(wanted: &str, value: &Value) -> String {
    match wanted {
        "string" => format!(
            "{} is not a text: write it in quotes, \"{}\"",
            shape(value),
            value.to_string().trim_matches('"')
        ),
        "boolean" => format!("{} is neither true nor false: write one of them", shape(value)),
        "integer" => format!("{} is not a whole number: write one, without quotes and unit", shape(value)),
        "array" => format!("{} is not a list: start each entry with \"- \"", shape(value)),
        _ => format!("{} has no fields: write \"name: value\" lines below", shape(value)),
    }
}

/// How a value is called in a message.
fn shape(value: &Value) -> String {
    match value {
        Value::Object(_) => "a map of fields".to_owned(),
        Value::Array(_) => "a list".to_owned(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => super::check::shown(value),
    }
}

/// The known name nearest to `name`: the same but for case, `-` and `_`, or at most two (for short names one) letters away.
pub fn nearest<'n>(name: &str, known: impl Iterator<Item = &'n str>) -> Option<&'n str> {
    let plain = |text: &str| text.replace(['-', '_'], "").to_lowercase();
    let wanted = plain(name);
    let most = if wanted.len() <= 4 { 1 } else { 2 };
    known
        .map(|known| (distance(&wanted, &plain(known)), known))
        .filter(|(distance, _)| *distance <= most)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, known)| known)
}

/// Edits from one name to the other, two letters swapped being one; names over 64 characters are far from everything.
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    if a.len() > 64 || b.len() > 64 {
        return usize::MAX;
    }
    // Row i holds the distances of the first i letters of a to each beginning of b.
    let mut rows: Vec<Vec<usize>> = vec![(0..=b.len()).collect()];
    let at = |rows: &[Vec<usize>], i: usize, j: usize| {
        rows.get(i).and_then(|row| row.get(j)).copied().unwrap_or(usize::MAX)
    };
    for i in 1..=a.len() {
        rows.push(vec![i]);
        for j in 1..=b.len() {
            let replaced = at(&rows, i - 1, j - 1) + usize::from(a.get(i - 1) != b.get(j - 1));
            let mut best = replaced.min(at(&rows, i - 1, j) + 1).min(at(&rows, i, j - 1) + 1);
            let is_swap = i > 1 && j > 1 && a.get(i - 1) == b.get(j - 2) && a.get(i - 2) == b.get(j - 1);
            if is_swap {
                best = best.min(at(&rows, i - 2, j - 2) + 1);
            }
            if let Some(row) = rows.last_mut() {
                row.push(best);
            }
        }
    }
    at(&rows, a.len(), b.len())
}

/// The path of the first object in the schema that has a field `name`.
fn place_of(schema: &Value, path: &str, name: &str) -> Option<String> {
    let properties = schema.get("properties").and_then(Value::as_object);
    if properties.is_some_and(|properties| properties.contains_key(name)) {
        return Some(path.to_owned());
    }
    let below = properties
        .into_iter()
        .flatten()
        .find_map(|(key, schema)| place_of(schema, &format!("{path}.{key}"), name));
    below.or_else(|| place_of(schema.get("items")?, &format!("{path}[]"), name))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn messages(value: Value) -> Vec<String> {
        let schema = json!({"type": "object", "required": ["name"], "properties": {
            "name": {"type": "string", "minLength": 1, "maxLength": 3},
            "mode": {"type": "string", "enum": ["Fast", "Slow"]},
            "count": {"type": "integer", "minimum": 0.0, "maximum": 4.0},
            "pays": {"type": "boolean"},
            "quota": {"x-kubernetes-int-or-string": true, "minimum": 0},
            "amounts": {"type": "object", "maxProperties": 1, "additionalProperties": {"x-kubernetes-int-or-string": true}},
            "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
            "list": {"type": "array", "maxItems": 1, "items": {"type": "object", "properties": {"deepField": {"type": "string"}}}},
        }});
        check(&schema, &value, "spec").iter().map(ToString::to_string).collect()
    }

    #[test]
    fn what_fits_has_no_problem() {
        assert!(
            messages(
                json!({"name": "a", "mode": "Fast", "count": 4, "pays": true, "quota": "1Gi", "list": [{}],
                    "amounts": {"cpu": "500m"}, "free": {"x": [1]}})
            )
            .is_empty()
        );
    }

    #[test]
    fn unknown_fields_get_a_near_name_a_place_or_the_list() {
        let said = |field: &str| messages(json!({"name": "a", field: 1})).remove(0);
        assert_eq!(said("nmae"), r#"spec.nmae: unknown field "nmae": did you mean "name"?"#);
        assert_eq!(said("Count"), r#"spec.Count: unknown field "Count": did you mean "count"?"#);
        assert_eq!(
            said("deepField"),
            r#"spec.deepField: unknown field "deepField": it belongs in spec.list[]"#
        );
        assert!(
            said("elephant").contains("use one of amounts, count, free, list, mode, name, pays, quota"),
            "{}",
            said("elephant")
        );
    }

    #[test]
    fn wrong_types_are_named_with_the_cure() {
        for (value, message) in [
            (json!({"name": 444}), r#"spec.name: 444 is not a text: write it in quotes, "444""#),
            (
                json!({"name": "a", "pays": "yes"}),
                r#"spec.pays: "yes" is neither true nor false: write one of them"#,
            ),
            (
                json!({"name": "a", "count": "3"}),
                r#"spec.count: "3" is not a whole number: write one, without quotes and unit"#,
            ),
            (
                json!({"name": "a", "count": 1.5}),
                "spec.count: 1.5 is not a whole number: write one without fraction",
            ),
            (
                json!({"name": "a", "list": {}}),
                r#"spec.list: a map of fields is not a list: start each entry with "- ""#,
            ),
            (
                json!({"name": "a", "list": ["x"]}),
                r#"spec.list[0]: "x" has no fields: write "name: value" lines below"#,
            ),
            (
                json!({"name": "a", "quota": -1}),
                "spec.quota: -1 is not a size in bytes: write one such as 50Gi",
            ),
            (
                json!({"name": "a", "amounts": {"cpu": "half"}}),
                "spec.amounts.cpu: \"half\" is not an amount: write one such as 500m, 2 or 4Gi",
            ),
        ] {
            assert_eq!(messages(value), [message]);
        }
    }

    #[test]
    fn bounds_are_named_with_the_range() {
        for (value, message) in [
            (json!({}), r#"spec: field "name" is missing: add it"#),
            (json!({"name": ""}), "spec.name: 0 characters are not allowed: give 1 to 3"),
            (json!({"name": "äöüß"}), "spec.name: 4 characters are not allowed: give 1 to 3"),
            (json!({"name": "a", "count": 5}), "spec.count: 5 is out of range: give 0 to 4"),
            (json!({"name": "a", "list": [{}, {}]}), "spec.list: 2 entries are not allowed: give at most 1"),
            (
                json!({"name": "a", "mode": "fast"}),
                r#"spec.mode: "fast" is not known here: write one of Fast, Slow"#,
            ),
        ] {
            assert_eq!(messages(value), [message]);
        }
    }
}
