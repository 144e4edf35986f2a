//! Choice of the form of a file: compressed where the disk takes longer for the bytes saved than a reader takes to decode them, as measured when the file is written.

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use serde::{Deserialize, Serialize};
use trunkline_codec::Dtype;
use trunkline_files::{Aligned, PAGE, open_for_reading, read_full};

use crate::stream::packed::form::{Form, PIECE, Packing};

/// Bytes of weights that are measured, at most.
const SAMPLE: usize = 16 * PIECE;
/// Bytes read to measure the disk.
const READ: usize = 64 << 20;

/// Compression of weights on a disk; no bit of a weight changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Compression {
    /// Weights are compressed if that takes less time, as measured when the file is written. A file that is there stays as it is.
    #[default]
    Auto,
    /// Weights are compressed, if they are floats.
    On,
    /// Weights are not compressed.
    Off,
}

/// Way to the form of a file that is written.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum FormChoice {
    /// This one, and what it was chosen by, if it was.
    Known(Form, Option<Learned>),
    /// The quickest of all by what is measured, with so many reads in flight; with `compresses` of those that are shorter.
    Measure { compresses: bool, reads: usize },
}

impl FormChoice {
    /// Returns the way that a setting asks for.
    pub(crate) fn of(compression: Compression, reads: u32) -> Self {
        let measure = |compresses| Self::Measure { compresses, reads: reads.max(1) as usize };
        match compression {
            Compression::Off => Self::Known(Form::Plain, None),
            Compression::Auto => measure(false),
            Compression::On => measure(true),
        }
    }

    /// Returns `true` if a file of this form may be used as it is. `compressible` files could be of another.
    pub(crate) fn takes(self, form: Form, compressible: bool) -> bool {
        match self {
            Self::Known(wanted, _) => form == wanted || !compressible,
            Self::Measure { compresses, .. } => !compresses || form != Form::Plain || !compressible,
        }
    }
}

/// What was measured before a file was written.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize, Serialize)]
pub struct Learned {
    /// Reads in flight.
    pub reads: usize,
    /// Bytes that the disk reads in a microsecond, which is MB/s.
    pub disk_mb_s: f64,
    /// The forms that are shorter.
    pub forms: [Measured; 2],
}

/// A form as measured.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize, Serialize)]
pub struct Measured {
    /// The form.
    pub form: Form,
    /// Bytes on the disk for each byte of weights.
    pub share: f64,
    /// Bytes of weights that one reader decodes in a microsecond.
    pub decode_mb_s: f64,
}

impl Learned {
    /// Measures the disk with the first bytes of a group, which lie at `place` of the file at `path`, and both shorter forms. `None` if they cannot be read.
    pub(super) fn measure(path: &Path, place: u64, dtype: Dtype, group: &[u8], reads: usize) -> Option<Self> {
        let sample = &group[..group.len().min(SAMPLE)];
        let disk_mb_s = rounded(read_rate(path, place, sample.len(), reads)? * 1e-6);
        let mut packing = Packing::default();
        let forms = Form::COMPRESSED.map(|form| {
            let (bytes, rate) = packing.measure(form, dtype, sample);
            let share = rounded(bytes as f64 / sample.len() as f64);
            Measured { form, share, decode_mb_s: rounded(rate * 1e-6) }
        });
        Some(Self { reads, disk_mb_s, forms })
    }

    /// Returns microseconds for a byte of weights as they are, and in a shorter form. With several reads in flight the disk reads while another reader decodes, and the slower
    /// of both counts; a single reader does one after the other.
    pub fn us_per_byte(&self, form: Form) -> f64 {
        let Some(of) = self.forms.iter().find(|of| of.form == form) else { return 1.0 / self.disk_mb_s };
        let (read, decode) = (of.share / self.disk_mb_s, 1.0 / of.decode_mb_s);
        if self.reads > 1 { read.max(decode) } else { read + decode }
    }

    /// Returns the form that takes the least time, of those that make the weights shorter and, unless it `compresses` anyway, the plain one; the longer one of equals.
    pub(super) fn quickest(&self, compresses: bool) -> Form {
        let is_shorter = |form: &Form| self.forms.iter().any(|of| of.form == *form && of.share < 1.0);
        let plain = (!compresses).then_some(Form::Plain);
        let forms = plain.into_iter().chain(Form::COMPRESSED.into_iter().filter(is_shorter));
        let quicker = |a: &Form, b: &Form| self.us_per_byte(*a).total_cmp(&self.us_per_byte(*b));
        forms.min_by(quicker).unwrap_or(Form::Dense)
    }
}

/// Returns a figure to six digits behind the point, which JSON gives back exactly: a file that is written again has the same bytes.
fn rounded(figure: f64) -> f64 {
    (figure * 1e6).round() / 1e6
}

/// Returns the bytes in a second that a file is read with, by so many threads that share the bytes.
fn read_rate(path: &Path, place: u64, bytes: usize, threads: usize) -> Option<f64> {
    let (file, _) = open_for_reading(path).ok()?;
    let part = (bytes / threads / PAGE * PAGE).max(PAGE);
    let parts = READ / part;
    let next = AtomicUsize::new(0);
    let read = || {
        let mut memory = Aligned::with_capacity(part);
        memory.resize(part);
        loop {
            let n = next.fetch_add(1, Ordering::Relaxed);
            if n >= parts {
                return true;
            }
            let at = place + (n % (bytes / part) * part) as u64;
            if read_full(&file, memory.as_mut_slice(), at).is_ok_and(|n| n == part) {
                continue;
            }
            return false;
        }
    };
    let begun = Instant::now();
    let are_read = std::thread::scope(|scope| {
        let others: Vec<_> = (1..threads).map(|_| scope.spawn(read)).collect();
        let own = read();
        others.into_iter().all(|reader| reader.join().is_ok_and(|read| read)) && own
    });
    let rate = (parts * part) as f64 / begun.elapsed().as_secs_f64().max(1e-9);
    are_read.then_some(rate)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn learned(reads: usize, disk_mb_s: f64, fast: (f64, f64), dense: (f64, f64)) -> Learned {
        let of = |form, (share, decode_mb_s)| Measured { form, share, decode_mb_s };
        Learned { reads, disk_mb_s, forms: [of(Form::Fast, fast), of(Form::Dense, dense)] }
    }

    #[test]
    fn the_form_that_takes_the_least_time_is_chosen() {
        // Two readers: the slower of reading and decoding counts.
        assert_eq!(learned(2, 1000.0, (0.75, 6000.0), (0.67, 2000.0)).quickest(false), Form::Dense);
        assert_eq!(learned(2, 2000.0, (0.75, 6000.0), (0.67, 2200.0)).quickest(false), Form::Fast);
        assert_eq!(learned(2, 9000.0, (0.75, 6000.0), (0.67, 2000.0)).quickest(false), Form::Plain);
        assert_eq!(learned(2, 9000.0, (0.75, 6000.0), (0.67, 2000.0)).quickest(true), Form::Fast);
        // A form that makes the weights no shorter is none.
        assert_eq!(learned(2, 9000.0, (1.0, 9000.0), (0.9, 100.0)).quickest(true), Form::Dense);
        // One reader reads and decodes in turn.
        assert_eq!(learned(1, 1000.0, (0.75, 6000.0), (0.67, 2000.0)).quickest(false), Form::Fast);
        assert_eq!(learned(1, 1000.0, (0.75, 3000.0), (0.67, 2000.0)).quickest(false), Form::Plain);
        let nothing_saved = learned(2, 1000.0, (1.0, 6000.0), (1.0, 6000.0));
        assert_eq!((nothing_saved.quickest(false), nothing_saved.us_per_byte(Form::Plain)), (Form::Plain, 0.001));
    }

    #[test]
    fn figures_are_read_as_they_were_written() {
        for n in 1..20_000 {
            let figure = rounded(f64::from(n).powf(1.7) / 7.0);
            let text = serde_json::to_string(&figure).unwrap();
            assert_eq!(serde_json::from_str::<f64>(&text).unwrap(), figure, "{text}");
        }
    }

    #[test]
    fn a_file_stays_unless_a_setting_asks_for_another_form() {
        let takes = |compression, form| FormChoice::of(compression, 2).takes(form, true);
        for form in [Form::Plain, Form::Fast, Form::Dense] {
            assert!(takes(Compression::Auto, form));
            assert_eq!(
                (takes(Compression::Off, form), takes(Compression::On, form)),
                (form == Form::Plain, form != Form::Plain)
            );
        }
        assert!(FormChoice::of(Compression::On, 2).takes(Form::Plain, false), "quantised weights have one form");
    }
}
