//! Objects of a conversation, whose keys keep their order.

use minijinja::Value;
use minijinja::value::ValueKind;

/// Returns the keys and values of an object, none of another value.
pub(crate) fn fields(value: &Value) -> impl Iterator<Item = (Value, Value)> {
    let keys = value.try_iter().ok().filter(|_| value.kind() == ValueKind::Map);
    keys.into_iter().flatten().map(|key| {
        let field = value.get_item(&key).unwrap_or_default();
        (key, field)
    })
}

/// Returns an object with these fields, in this order.
pub(crate) fn object(fields: impl IntoIterator<Item = (Value, Value)>) -> Value {
    Value::from_pairs(fields)
}

/// Returns a copy of an object with another value under a key that it has.
pub(crate) fn with(value: &Value, key: &str, new: &Value) -> Value {
    object(fields(value).map(|(name, old)| {
        let new = if name.as_str() == Some(key) { new.clone() } else { old };
        (name, new)
    }))
}
