//! Statistics of a model's keys and values, per layer and channel: what frames are encoded against.
//!
//! Keys are taken before the rotation. Both elements of a pair have one deviation, because the rotation mixes them.

use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::huffman::LENGTH_MAX;
use crate::lanes;
use crate::quant;
use crate::shape::{Dtype, Shape};
use crate::values::Format;

/// Statistics of a channel, in integers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Channel {
    /// Mean in units of `2^exponent / 128`.
    mean: i16,
    /// Reference exponent: that of the deviation, or a higher one where the mean is beyond 128 times the deviation.
    exponent: i8,
    /// `true` if the deviation is at least `2^(exponent + 1/2)`.
    upper: bool,
}

/// Magic and version of a table in bytes; the label follows.
const HEAD: [u8; 5] = *b"TKVS\x01";

/// Part of a context's number for deviations in the upper half of an octave.
const UPPER: u16 = 16 << LENGTH_MAX;

/// Statistics of the channels of one layer's keys or values, an array for each so that compilers can do many channels at once.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Plane {
    /// Means in units of `2^exponent / 128`.
    pub means: Vec<i16>,
    /// Reference exponents of the channels.
    pub exponents: Vec<i8>,
    /// Parts of the codes' numbers: [`UPPER`] where the deviation is at least `2^(exponent + 1/2)`, else 0.
    pub uppers: Vec<u16>,
}

impl FromIterator<Channel> for Plane {
    fn from_iter<I: IntoIterator<Item = Channel>>(channels: I) -> Self {
        let mut plane = Self::default();
        for Channel { mean, exponent, upper } in channels {
            plane.means.push(mean);
            plane.exponents.push(exponent);
            plane.uppers.push(if upper { UPPER } else { 0 });
        }
        plane
    }
}

/// Statistics that frames are encoded against, and without which none can be decoded.
#[derive(Clone, Debug, PartialEq)]
pub struct SideTable {
    channels_each: usize,
    head_dim: usize,
    /// Keys and values of each layer: `[layer][keys, values]`.
    planes: Vec<Plane>,
    /// Frequencies of pairs for each layer; none rotates nothing.
    frequencies: Vec<Vec<u64>>,
    /// For each layer the first one with equal frequencies.
    like: Vec<usize>,
    id: u64,
    label: u8,
}

impl SideTable {
    fn new(channels_each: usize, head_dim: usize, channels: &[Channel], frequencies: Vec<Vec<u64>>) -> Self {
        let planes = channels.chunks_exact(channels_each).map(|plane| plane.iter().copied().collect()).collect();
        let first = |own: &Vec<u64>| frequencies.iter().position(|other| other == own).unwrap_or(0);
        let like = frequencies.iter().map(first).collect();
        let table = Self { channels_each, head_dim, planes, frequencies, like, id: 0, label: 0 };
        table.labelled(0)
    }

    /// Makes a table from the mean and the deviation of each channel: `[layer][keys, values][head][dim]`, keys before the rotation.
    /// `frequencies` belong to each layer's rotary embeddings. Values that are not finite count as zero.
    ///
    /// # Panics
    /// If `statistics` has another length than the shape has channels, `frequencies` another length than the shape has layers, or one of them is
    /// neither empty nor half a head long; a head of an odd length has no half.
    pub fn from_statistics(shape: &Shape, frequencies: Vec<Vec<u64>>, statistics: &[(f64, f64)]) -> Self {
        let (channels, half) = (shape.channels(), usize::from(shape.head_dim / 2));
        assert_frequencies(shape, &frequencies);
        assert_eq!(statistics.len(), 2 * usize::from(shape.layers) * channels, "statistics for each channel");
        let finite = |value: f64| if value.is_finite() { value } else { 0.0 };
        let mut table = Vec::with_capacity(statistics.len());
        for (plane, own) in statistics.chunks_exact(channels.max(1)).enumerate() {
            let rotates = plane % 2 == 0 && !frequencies[plane / 2].is_empty();
            for (at, (mean, deviation)) in own.iter().enumerate() {
                let (mean, deviation) = (finite(*mean), finite(*deviation));
                if !rotates {
                    table.push(channel(mean, deviation, mean.abs()));
                    continue;
                }
                let dim = at % usize::from(shape.head_dim);
                let (other_mean, other_deviation) = own[if dim < half { at + half } else { at - half }];
                let variance = f64::midpoint(deviation.powi(2), finite(other_deviation).powi(2));
                table.push(channel(mean, variance.sqrt(), mean.hypot(finite(other_mean))));
            }
        }
        Self::new(channels, shape.head_dim.into(), &table, frequencies)
    }

    /// Reads a table for blocks of a shape, as [`Self::to_bytes`] wrote it. Returns `None` if the bytes are not a table, a table of another version
    /// or for another shape, or damaged. The shape bounds the work for bytes from anywhere.
    pub fn from_bytes(bytes: &[u8], shape: &Shape) -> Option<Self> {
        let (head, contents) = bytes.split_first_chunk::<8>()?;
        let (id, contents) = contents.split_first_chunk::<8>()?;
        let &[label, 0, 0] = head.strip_prefix(&HEAD)? else { return None };
        if u64::from_le_bytes(*id) != xxh3_64_with_seed(contents, label.into()) {
            return None;
        }
        let mut numbers = Numbers(contents);
        let [channels_each, head_dim, layers] = [numbers.word()?, numbers.word()?, numbers.word()?];
        if [channels_each, head_dim, layers] != [shape.channels(), shape.head_dim.into(), shape.layers.into()] {
            return None;
        }
        let mut frequencies = Vec::with_capacity(layers);
        for _ in 0..layers {
            let n = numbers.word()?;
            // Kept in order, so that a table is written as it was read.
            let layer: Option<Vec<u64>> = (0..n).map(|_| numbers.next().map(u64::from_le_bytes)).collect();
            frequencies.push(layer.filter(|layer| layer.is_empty() || 2 * layer.len() == head_dim)?);
        }
        let n = channels_each.checked_mul(2)?.checked_mul(layers)?;
        let is_whole = channels_each > 0
            && numbers.0.len() == n.checked_mul(4)?
            && numbers.0.iter().skip(3).step_by(4).all(|upper| *upper <= 1);
        let channel = |bytes: &[u8; 4]| Channel {
            mean: i16::from_le_bytes([bytes[0], bytes[1]]),
            exponent: bytes[2] as i8,
            upper: bytes[3] != 0,
        };
        let channels: Vec<Channel> = numbers.0.as_chunks::<4>().0.iter().map(channel).collect();
        is_whole.then(|| Self::new(channels_each, head_dim, &channels, frequencies).labelled(label))
    }

    /// Returns the hash of the contents: the name by which frames ask for the table.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Returns the table with a label: a number by which a store with several tables, one per layer group say, tells them apart.
    /// The id changes with it.
    #[must_use]
    pub fn labelled(self, label: u8) -> Self {
        Self { label, id: xxh3_64_with_seed(&self.contents(), label.into()), ..self }
    }

    /// Returns the label; 0 if none was given.
    pub fn label(&self) -> u8 {
        self.label
    }

    /// Returns `true` if blocks of the shape can be encoded against the table.
    pub fn fits(&self, shape: &Shape) -> bool {
        self.channels_each == shape.channels()
            && self.head_dim == usize::from(shape.head_dim)
            && self.frequencies.len() == usize::from(shape.layers)
    }

    /// Returns `true` if keys are rotated: then a frame needs the position of the block.
    pub fn rotates(&self) -> bool {
        self.frequencies.iter().any(|layer| !layer.is_empty())
    }

    #[inline(always)]
    pub(crate) fn plane(&self, layer: usize, side: usize) -> &Plane {
        &self.planes[2 * layer + side]
    }

    /// Returns the first layer with the frequencies of `layer`.
    #[inline(always)]
    pub(crate) fn like(&self, layer: usize) -> usize {
        self.like[layer]
    }

    /// Returns the frequencies of a layer's pairs.
    pub(crate) fn frequencies(&self, layer: usize) -> &[u64] {
        &self.frequencies[layer]
    }

    /// Writes the table, to be kept with the frames. [`Self::from_bytes`] reads the bytes.
    ///
    /// ```text
    /// "TKVS" | version (1):u8 | label:u8 | 0:u8 twice | id:u64, the XXH3 of what follows with the label as seed |
    /// channels:u32 | elements of a head:u32 | layers:u32 | for each layer: frequencies:u32, each u64 |
    /// for each layer, keys then values, each channel: mean:i16, exponent:i8, upper:u8
    /// ```
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = HEAD.to_vec();
        out.extend([self.label, 0, 0]);
        out.extend(self.id.to_le_bytes());
        out.extend(self.contents());
        out
    }

    fn contents(&self) -> Vec<u8> {
        let mut out = Vec::new();
        out.extend((self.channels_each as u32).to_le_bytes());
        out.extend((self.head_dim as u32).to_le_bytes());
        out.extend((self.frequencies.len() as u32).to_le_bytes());
        for frequencies in &self.frequencies {
            out.extend((frequencies.len() as u32).to_le_bytes());
            frequencies.iter().for_each(|frequency| out.extend(frequency.to_le_bytes()));
        }
        for Plane { means, exponents, uppers } in &self.planes {
            for ((mean, exponent), upper) in means.iter().zip(exponents).zip(uppers) {
                out.extend(mean.to_le_bytes());
                out.extend([*exponent as u8, u8::from(*upper > 0)]);
            }
        }
        out
    }
}

/// Reader of a table's numbers.
struct Numbers<'a>(&'a [u8]);

impl Numbers<'_> {
    fn next<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (number, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*number)
    }

    fn word(&mut self) -> Option<usize> {
        self.next().map(|bytes| u32::from_le_bytes(bytes) as usize)
    }
}

/// Sums over a channel.
#[derive(Clone, Copy, Debug, Default)]
struct Sums {
    sum: f64,
    squares: f64,
}

/// Collector of a model's statistics, from blocks that pass.
#[derive(Clone, Debug)]
pub struct Calibrator {
    shape: Shape,
    frequencies: Vec<Vec<u64>>,
    tokens: u64,
    sums: Vec<Sums>,
}

impl Calibrator {
    /// Creates a collector for blocks of a shape. `frequencies` belong to each layer's rotary embeddings.
    ///
    /// # Panics
    /// If `frequencies` has another length than the shape has layers, or one of them is neither empty nor half a head long; a head of an odd length
    /// has no half.
    pub fn new(shape: Shape, frequencies: Vec<Vec<u64>>) -> Self {
        assert_frequencies(&shape, &frequencies);
        let sums = vec![Sums::default(); 2 * usize::from(shape.layers) * shape.channels()];
        Self { shape, frequencies, tokens: 0, sums }
    }

    /// Returns the number of tokens seen.
    pub fn tokens(&self) -> u64 {
        self.tokens
    }

    /// Takes in a block whose first token has the position `position`. Elements that are not finite count as zero, and bytes beyond whole rows are
    /// ignored.
    pub fn add(&mut self, dtype: Dtype, position: u32, bytes: &[u8]) {
        let channels = self.shape.channels();
        let (elements, unit_len) = dtype.unit();
        let mut values = Vec::with_capacity(channels);
        let rows = bytes.chunks_exact((channels / elements * unit_len).max(1)).take(self.shape.rows());
        for (row, bytes) in rows.enumerate() {
            let (layer, side, token) = self.shape.place(row);
            values_of(dtype, bytes, &mut values);
            if side == 0 {
                self.unrotate(layer, position.wrapping_add(token as u32), &mut values);
            }
            let at = (2 * layer + side) * channels;
            for (sums, value) in self.sums[at..at + channels].iter_mut().zip(&values) {
                sums.sum += value;
                sums.squares += value * value;
            }
        }
        self.tokens += u64::from(self.shape.tokens);
    }

    fn unrotate(&self, layer: usize, position: u32, values: &mut [f64]) {
        let frequencies = &self.frequencies[layer];
        if frequencies.is_empty() {
            return;
        }
        for head in values.chunks_exact_mut(usize::from(self.shape.head_dim)) {
            let (first, second) = head.split_at_mut(frequencies.len());
            for ((a, b), frequency) in first.iter_mut().zip(second).zip(frequencies) {
                let turns = frequency.wrapping_mul(u64::from(position)) as f64 / 2f64.powi(64);
                let (sin, cos) = (turns * std::f64::consts::TAU).sin_cos();
                (*a, *b) = (*a * cos + *b * sin, *b * cos - *a * sin);
            }
        }
    }

    /// Returns the statistics so far. Two machines may differ in the last bit; a table is therefore made once, and kept.
    pub fn finish(&self) -> SideTable {
        let n = (self.tokens.max(1)) as f64;
        let statistics = |sums: &Sums| {
            let mean = sums.sum / n;
            (mean, (sums.squares / n - mean.powi(2)).max(0.0).sqrt())
        };
        let statistics: Vec<(f64, f64)> = self.sums.iter().map(statistics).collect();
        SideTable::from_statistics(&self.shape, self.frequencies.clone(), &statistics)
    }
}

/// Sets the values of elements; 0 for what is not finite.
fn values_of(dtype: Dtype, bytes: &[u8], values: &mut Vec<f64>) {
    values.clear();
    if dtype.is_quantised() {
        let mut floats = Vec::new();
        let read = if dtype == Dtype::Q8_0 { quant::from_q8_0 } else { quant::from_q4_0 };
        let is_whole = read(bytes, &mut floats).is_ok();
        debug_assert!(is_whole, "rows are whole units");
        values.extend(floats.iter().map(|value| if value.is_finite() { f64::from(*value) } else { 0.0 }));
        return;
    }
    let (format, mut lanes) = (Format::of(dtype), vec![0; bytes.len() / dtype.width()]);
    lanes::split(dtype, bytes, &mut lanes);
    values.extend(lanes.iter().map(|lane| format.value(*lane)));
}

fn assert_frequencies(shape: &Shape, frequencies: &[Vec<u64>]) {
    assert_eq!(frequencies.len(), usize::from(shape.layers), "frequencies for each layer");
    let head_dim = usize::from(shape.head_dim);
    assert!(
        frequencies.iter().all(|layer| layer.is_empty() || 2 * layer.len() == head_dim),
        "a frequency for each pair"
    );
}

/// Returns the statistics in integers. `reach` is the greatest magnitude that the mean may have after a rotation.
fn channel(mean: f64, deviation: f64, reach: f64) -> Channel {
    // The least deviation and the least mean of any format are far above 2^-120.
    let log = deviation.max(2f64.powi(-120)).log2();
    let least = if reach > 0.0 { reach.log2().floor() - 7.0 } else { -120.0 };
    let exponent = log.floor().max(least).clamp(-120.0, 120.0);
    let upper = log - exponent >= 0.5;
    let mean = (mean * 2f64.powf(7.0 - exponent)).round().clamp(-32_767.0, 32_767.0);
    Channel { mean: mean as i16, exponent: exponent as i8, upper }
}
