//! The content of a compaction item: JSON of this server, which clients send back as they got it.

use serde::{Deserialize, Serialize};
use trunkline_template::Value;

/// `encrypted_content` of a compaction. It is not encrypted: it has nothing that the client did not send or get.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Content {
    pub(crate) summary: String,
    /// `true` if the compaction stands for all items before it.
    #[serde(default, skip_serializing_if = "is_false")]
    pub(crate) cuts: bool,
    /// Items that stay in front of the summary.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) before: Vec<Value>,
    /// Items that stay behind it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) after: Vec<Value>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's form")]
fn is_false(value: &bool) -> bool {
    !*value
}

impl Content {
    /// Returns the content of a compaction that leaves the items before it as they are.
    pub(crate) fn of_summary(summary: String) -> Self {
        Self { summary, ..Self::default() }
    }

    /// Reads the content of an item.
    ///
    /// # Errors
    /// If it is not of this server; the text follows the place of the item.
    pub(crate) fn of(item: &Value) -> Result<Self, String> {
        let content = item.get_attr("encrypted_content").unwrap_or_default();
        let text = content.as_str().ok_or(" has no encrypted_content")?;
        serde_json::from_str(text).map_err(|_| ".encrypted_content is not of this server".to_owned())
    }

    /// Returns the content as text.
    pub(crate) fn text(&self) -> String {
        // Nothing in it can fail to be JSON.
        serde_json::to_string(self).unwrap_or_default()
    }

    /// Returns an item with this content.
    pub(crate) fn item(&self) -> Value {
        Value::from_pairs([("type", "compaction"), ("encrypted_content", &self.text())])
    }
}
