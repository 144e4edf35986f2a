//! Settings of cache events for `serve`.

use anyhow::{Context, ensure};
use clap::Args;
use tracing::warn;
use trunkline_events::{Form, Publisher, Settings, Source};
use trunkline_http::{KvEventSource, KvEventSources};
use trunkline_quote::quoted;

/// Settings of cache events; `None` where not given.
#[derive(Args, Clone, Debug, Default, PartialEq)]
pub struct EventsSettings {
    /// Follow the caches for routers: true or false. SubscribeKvEvents of vLLM's gRPC service answers then; --kv-events-endpoint publishes over
    /// ZeroMQ, too, and needs no other flag [default: false].
    #[arg(long, value_name = "BOOL")]
    pub kv_events: Option<bool>,

    /// Address at which cache events are published over ZeroMQ, as vLLM publishes them, like tcp://*:5557. Of several workers, each has the next
    /// port. An address of another machine is connected to, not listened on.
    #[arg(long, value_name = "ENDPOINT")]
    pub kv_events_endpoint: Option<String>,

    /// Address at which subscribers ask for batches that they missed, like tcp://*:5558.
    #[arg(long, value_name = "ENDPOINT")]
    pub kv_events_replay_endpoint: Option<String>,

    /// Address at which subscribers ask for a snapshot of the cache, like tcp://*:5559.
    #[arg(long, value_name = "ENDPOINT")]
    pub kv_events_snapshot_endpoint: Option<String>,

    /// Topic of the batches; llm-d reads kv@POD@MODEL [default: none].
    #[arg(long, value_name = "TOPIC")]
    pub kv_events_topic: Option<String>,

    /// Form of the events: map, or array for subscribers that read vLLM's older form [default: map].
    #[arg(long, value_name = "FORM")]
    pub kv_events_form: Option<String>,

    /// Batches kept for replay, up to 1,000,000 [default: 10000].
    #[arg(long, value_name = "N")]
    pub kv_events_history: Option<usize>,
}

impl EventsSettings {
    /// Returns the publisher, which begins with the server; `None` if nobody follows the caches.
    ///
    /// # Errors
    /// If a setting is wrong, or has no effect without another.
    pub fn publisher(&self) -> anyhow::Result<Option<Publisher>> {
        Ok(self.settings()?.map(Publisher::new))
    }

    fn settings(&self) -> anyhow::Result<Option<Settings>> {
        let default = Settings::default();
        let form = self.kv_events_form.as_deref().map(|name| {
            let known = Form::ALL.iter().find(|(known, _)| *known == name).map(|(_, form)| *form);
            known.with_context(|| format!("--kv-events-form is {}; give map or array", quoted(name)))
        });
        let settings = Settings {
            endpoint: self.kv_events_endpoint.clone(),
            replay_endpoint: self.kv_events_replay_endpoint.clone(),
            snapshot_endpoint: self.kv_events_snapshot_endpoint.clone(),
            topic: self.kv_events_topic.clone().unwrap_or_default(),
            form: form.transpose()?.unwrap_or_default(),
            history: self.kv_events_history.unwrap_or(default.history),
        };
        let max = 1_000_000;
        ensure!(
            (1..=max).contains(&settings.history),
            "--kv-events-history is {}; give 1 to {max} batches",
            settings.history
        );
        settings.check()?;
        let is_published = settings.endpoint.is_some();
        let of_sockets = [
            ("replay-endpoint", self.kv_events_replay_endpoint.is_some()),
            ("snapshot-endpoint", self.kv_events_snapshot_endpoint.is_some()),
            ("topic", self.kv_events_topic.is_some()),
            ("form", self.kv_events_form.is_some()),
        ];
        if let Some((name, _)) = of_sockets.iter().find(|(_, is_given)| *is_given && !is_published) {
            anyhow::bail!("--kv-events-{name} has no effect without --kv-events-endpoint");
        }
        let is_on = self.kv_events.unwrap_or(is_published);
        ensure!(is_on || !is_published, "--kv-events-endpoint publishes events, and --kv-events is false");
        ensure!(
            is_on || self.kv_events_history.is_none(),
            "--kv-events-history has no effect without --kv-events or --kv-events-endpoint"
        );
        for endpoint in settings.open_endpoints() {
            warn!(
                "{endpoint} is open to other machines and asks for no token, and events have the tokens of prompts: let only routers reach it"
            );
        }
        Ok(is_on.then_some(settings))
    }
}

/// A publisher, for routers that ask over HTTP where it publishes.
#[derive(Debug)]
pub struct Published(pub Publisher);

impl KvEventSources for Published {
    fn sources(&self) -> Vec<KvEventSource> {
        let source = |source: &Source| KvEventSource {
            data_parallel_rank: source.rank,
            endpoint: source.endpoint.clone(),
            replay_endpoint: source.replay_endpoint.clone(),
            snapshot_endpoint: source.snapshot_endpoint.clone(),
            topic: self.0.topic().to_owned(),
        };
        self.0.sources().iter().map(source).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_reach_the_publisher() {
        let settings = EventsSettings::default();
        assert_eq!(settings.settings().unwrap(), None);
        let on = EventsSettings { kv_events: Some(true), ..settings.clone() };
        assert_eq!(on.settings().unwrap(), Some(Settings::default()));
        let all = EventsSettings {
            kv_events: None,
            kv_events_endpoint: Some("tcp://127.0.0.1:5557".into()),
            kv_events_replay_endpoint: Some("tcp://127.0.0.1:5558".into()),
            kv_events_snapshot_endpoint: Some("tcp://127.0.0.1:5559".into()),
            kv_events_topic: Some("kv@pod@model".into()),
            kv_events_form: Some("array".into()),
            kv_events_history: Some(7),
        };
        let expected = Settings {
            endpoint: Some("tcp://127.0.0.1:5557".into()),
            replay_endpoint: Some("tcp://127.0.0.1:5558".into()),
            snapshot_endpoint: Some("tcp://127.0.0.1:5559".into()),
            topic: "kv@pod@model".into(),
            form: Form::Array,
            history: 7,
        };
        assert_eq!(all.settings().unwrap(), Some(expected));
    }

    #[test]
    fn a_wrong_or_lone_flag_is_refused_in_one_line() {
        let endpoint = || Some("tcp://127.0.0.1:5557".to_owned());
        let none = EventsSettings::default;
        let wrong = [
            (EventsSettings { kv_events_topic: Some("t".into()), ..none() }, "--kv-events-topic has no effect without"),
            (
                EventsSettings { kv_events_replay_endpoint: endpoint(), ..none() },
                "--kv-events-replay-endpoint has no effect without --kv-events-endpoint",
            ),
            (EventsSettings { kv_events_history: Some(5), ..none() }, "--kv-events-history has no effect without"),
            (
                EventsSettings { kv_events: Some(false), kv_events_endpoint: endpoint(), ..none() },
                "--kv-events is false",
            ),
            (
                EventsSettings { kv_events_endpoint: endpoint(), kv_events_history: Some(0), ..none() },
                "--kv-events-history is 0; give 1 to 1000000 batches",
            ),
            (
                EventsSettings { kv_events_endpoint: endpoint(), kv_events_form: Some("maps".into()), ..none() },
                "--kv-events-form is 'maps'; give map or array",
            ),
            (
                EventsSettings { kv_events_endpoint: Some("localhost:1".into()), ..none() },
                "'localhost:1' is no address of a ZeroMQ socket; give tcp://HOST:PORT",
            ),
        ];
        for (settings, line) in wrong {
            let error = format!("{:#}", settings.settings().unwrap_err());
            assert!(error.contains(line) && !error.contains('\n'), "{error}");
        }
    }
}
