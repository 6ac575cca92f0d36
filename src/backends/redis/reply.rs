//! Readers of replies. A value of an unexpected form is `None`, never a panic.

use redis::Value;

/// Returns the value as text. Invalid UTF-8 is replaced, since foreign libraries may write any
/// bytes.
pub(in crate::backends) fn text(value: &Value) -> Option<String> {
    match value {
        Value::BulkString(bytes) => Some(String::from_utf8_lossy(bytes).into_owned()),
        Value::SimpleString(text) => Some(text.clone()),
        Value::Okay => Some("OK".into()),
        Value::Int(number) => Some(number.to_string()),
        _ => None,
    }
}

/// Returns a whole number, sent as a number or as text.
pub(in crate::backends) fn int(value: &Value) -> Option<i64> {
    match value {
        Value::Int(number) => Some(*number),
        Value::BulkString(bytes) => str::from_utf8(bytes).ok()?.parse().ok(),
        _ => None,
    }
}

/// Returns the items of a list.
pub(in crate::backends) fn items(value: &Value) -> Option<&[Value]> {
    match value {
        Value::Array(items) => Some(items),
        _ => None,
    }
}

/// Returns the pairs of a list that alternates fields and values.
pub(in crate::backends) fn pairs(value: &Value) -> Option<Vec<(String, String)>> {
    items(value)?
        .chunks(2)
        .map(|pair| Some((text(pair.first()?)?, text(pair.get(1)?)?)))
        .collect()
}
