//! Settings of plain HTTP for `serve`.

use clap::Args;

/// Settings of plain HTTP; `None` where not given.
#[derive(Args, Clone, Debug, Default, PartialEq)]
#[command(next_help_heading = "HTTP")]
pub struct HttpSettings {
    /// Name of the model for clients of HTTP, several separated by commas; the first is the one in answers [default: the model's own].
    #[arg(long, value_name = "NAMES")]
    pub served_model_name: Option<String>,
}

impl HttpSettings {
    /// Returns the settings of the door.
    pub fn door(&self) -> trunkline_http::Settings {
        let names = self.served_model_name.iter().flat_map(|names| names.split(','));
        let served_names = names.map(str::trim).filter(|name| !name.is_empty()).map(str::to_owned).collect();
        trunkline_http::Settings { served_names }
    }
}
