//! Values of settings that imitate another engine, for replays: a server does not offer them.

/// Setting, value, and the engine that does the same. Values with parameters count by their name.
const IMITATIONS: [(&str, &str, &str); 4] = [
    ("eviction", "leaves", "SGLang"),
    ("policy", "lpm_sorted", "SGLang"),
    ("preemption", "retract", "SGLang"),
    ("preemption", "retract_at_once", "SGLang"),
];

/// Returns the engine that a value of a setting imitates, if it is there for that alone.
pub fn imitated(setting: &str, value: &str) -> Option<&'static str> {
    let name = value.split(':').next().unwrap_or_default();
    IMITATIONS.iter().find(|(of, listed, _)| *of == setting && *listed == name).map(|(_, _, engine)| *engine)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Config, setting};

    #[test]
    fn every_imitation_is_a_value_of_its_setting() {
        for (of, value, engine) in IMITATIONS {
            let mut config = Config::default();
            (setting(of).expect(of).set)(&mut config, value).unwrap();
            config.validate().unwrap();
            assert_eq!(imitated(of, &format!("{value}:a=1")), Some(engine));
        }
        assert_eq!((imitated("eviction", "lru"), imitated("policy", "leaves")), (None, None));
    }
}
