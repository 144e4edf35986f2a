//! Metadata of a GGUF file by key, with types.

use gguf_rs_lib::format::MetadataArray;
use gguf_rs_lib::prelude::{Metadata, MetadataValue};

/// The keys of a file.
#[derive(Clone, Copy)]
pub(crate) struct Keys<'a> {
    pub(crate) metadata: &'a Metadata,
}

impl<'a> Keys<'a> {
    fn get<T>(
        &self,
        key: &str,
        kind: &str,
        read: impl Fn(&'a MetadataValue) -> Option<T>,
    ) -> Result<Option<T>, String> {
        let value = self.metadata.get(key);
        value.map(|value| read(value).ok_or_else(|| format!("{key} is not {kind}"))).transpose()
    }

    pub(crate) fn text(&self, key: &str) -> Result<Option<&'a str>, String> {
        self.get(key, "a text", MetadataValue::as_str)
    }

    pub(crate) fn flag(&self, key: &str) -> Result<Option<bool>, String> {
        self.get(key, "true or false", MetadataValue::as_bool)
    }

    pub(crate) fn integer(&self, key: &str) -> Result<Option<i64>, String> {
        self.get(key, "a whole number", integer)
    }

    pub(crate) fn real(&self, key: &str) -> Result<Option<f64>, String> {
        self.get(key, "a number", MetadataValue::as_f64)
    }

    /// Returns the elements of a list, none if the file does not have the list.
    fn list(&self, key: &str) -> Result<std::slice::Iter<'a, MetadataValue>, String> {
        let list = self.get(key, "a list", |value| match value {
            MetadataValue::Array(list) => Some(list.as_ref()),
            _ => None,
        })?;
        Ok(list.map(MetadataArray::iter).unwrap_or_default())
    }

    pub(crate) fn texts(&self, key: &'static str) -> Result<impl Iterator<Item = Result<&'a str, String>>, String> {
        let texts = self.list(key)?;
        Ok(texts.map(move |value| value.as_str().ok_or_else(|| format!("{key} has an element that is not a text"))))
    }

    pub(crate) fn integers(&self, key: &str) -> Result<Vec<i64>, String> {
        let values: Option<Vec<i64>> = self.list(key)?.map(integer).collect();
        values.ok_or_else(|| format!("{key} has an element that is not a whole number"))
    }

    pub(crate) fn reals(&self, key: &str) -> Result<Vec<f64>, String> {
        let values: Option<Vec<f64>> = self.list(key)?.map(MetadataValue::as_f64).collect();
        values.ok_or_else(|| format!("{key} has an element that is not a number"))
    }
}

fn integer(value: &MetadataValue) -> Option<i64> {
    value.as_i64().or_else(|| value.as_u64().and_then(|value| i64::try_from(value).ok()))
}
