//! Dates of the server's certificates, looked at when they are read and while they are in use.

use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio_rustls::rustls::pki_types::{CertificateDer, UnixTime};
use tracing::error;
use webpki::{EndEntityCert, KeyUsage};

const MINUTE: u64 = 60;
const HOUR: u64 = 60 * MINUTE;
const DAY: u64 = 24 * HOUR;

/// Certificates in use, and the last fault of their dates in the log.
pub(crate) struct Validity {
    chain: Vec<CertificateDer<'static>>,
    /// Number of the certificate, and `true` if it has expired.
    reported: Mutex<Option<(usize, bool)>>,
}

/// Fault of a certificate's dates.
enum OutOfDate {
    /// Expired so long ago.
    Expired(Duration),
    /// Valid only after so long.
    TooEarly(Duration),
}

impl Validity {
    pub(crate) fn new(chain: Vec<CertificateDer<'static>>) -> Self {
        Self { chain, reported: Mutex::default() }
    }

    /// Logs the first certificate outside its dates, unless the log has it.
    pub(crate) fn report(&self, path: &Path, now: UnixTime) {
        if let Some(line) = self.news(path, now) {
            error!("{line}");
        }
    }

    /// Returns a line about the first certificate outside its dates, unless the last call found the same.
    fn news(&self, path: &Path, now: UnixTime) -> Option<String> {
        let fault = |(at, certificate)| out_of_date(certificate, now).map(|fault| (at, fault));
        let fault = (1..).zip(&self.chain).find_map(fault);
        let found = fault.as_ref().map(|(at, fault)| (*at, matches!(fault, OutOfDate::Expired(_))));
        let mut reported = self.reported.lock().unwrap_or_else(PoisonError::into_inner);
        let is_news = std::mem::replace(&mut *reported, found) != found;
        fault.filter(|_| is_news).map(|(at, fault)| line(path, at, fault))
    }
}

/// Returns the fault of a certificate's dates, if there is one.
fn out_of_date(certificate: &CertificateDer<'_>, now: UnixTime) -> Option<OutOfDate> {
    let certificate = EndEntityCert::try_from(certificate).ok()?;
    let between = |from: UnixTime, to: UnixTime| Duration::from_secs(to.as_secs().saturating_sub(from.as_secs()));
    // Dates are verified before anything else. The rest needs an authority, and is for clients to verify.
    match certificate.verify_for_usage(&[], &[], &[], now, KeyUsage::server_auth(), None, None) {
        Err(webpki::Error::CertExpired { not_after, .. }) => Some(OutOfDate::Expired(between(not_after, now))),
        Err(webpki::Error::CertNotValidYet { not_before, .. }) => Some(OutOfDate::TooEarly(between(now, not_before))),
        _ => None,
    }
}

/// Returns the line of the log about certificate number `at` of a file.
fn line(path: &Path, at: usize, fault: OutOfDate) -> String {
    let path = path.display();
    let certificate = if at == 1 { "the TLS certificate".to_owned() } else { format!("TLS certificate number {at}") };
    let about = |time: Duration| match time.as_secs() {
        seconds if seconds >= 2 * DAY => format!("{} days", seconds / DAY),
        seconds if seconds >= 2 * HOUR => format!("{} hours", seconds / HOUR),
        seconds => format!("{} minutes", seconds / MINUTE),
    };
    match fault {
        OutOfDate::Expired(time) => {
            let time = about(time);
            format!("{path}: {certificate} expired {time} ago, and clients refuse it; put a new one in its place")
        }
        OutOfDate::TooEarly(time) => format!(
            "{path}: {certificate} is not valid for another {}, and clients refuse it; check the clock of this machine, or put another in its place",
            about(time)
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::tls::certificates;

    #[test]
    fn a_certificate_outside_its_dates_is_named_once() {
        let pem = |name: &str| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/tls").join(name);
        let read = |name: &str| certificates(&pem(name)).unwrap();
        let at = |seconds| UnixTime::since_unix_epoch(Duration::from_secs(seconds));
        let news = |validity: &Validity, now| validity.news(Path::new("a.pem"), now).unwrap_or_default();

        let validity = Validity::new(read("server.pem"));
        assert_eq!(news(&validity, UnixTime::now()), "");
        assert!(news(&validity, at(0)).starts_with("a.pem: the TLS certificate is not valid for another "));
        assert_eq!(news(&validity, at(1)), "", "it is in the log");
        assert!(news(&validity, at(1 << 33)).starts_with("a.pem: the TLS certificate expired "));
        assert_eq!(news(&validity, at(1 << 33)), "", "it is in the log");
        assert_eq!(news(&validity, UnixTime::now()), "");
        assert_ne!(news(&validity, at(1 << 33)), "", "it has expired again");

        // Valid for the first hour of 2020.
        let expired = read("expired.pem");
        let chain = Validity::new([read("server.pem"), expired].concat());
        let hour = 1_577_840_400;
        let line = news(&chain, UnixTime::now());
        assert!(line.starts_with("a.pem: TLS certificate number 2 expired "), "{line}");
        for (passed, time) in [(120, "2 minutes"), (7_300, "2 hours"), (200_000, "2 days")] {
            let validity = Validity::new(read("expired.pem"));
            assert_eq!(news(&validity, at(hour - 1)), "");
            let line = news(&validity, at(hour + passed));
            assert!(line.contains(&format!(" expired {time} ago, ")), "{line}");
        }
    }
}
