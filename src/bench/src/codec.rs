//! Codec benchmark: ratio and speed of KV frames on one core, for every element type and way to encode, compared with zstd in the same run.

use std::f64::consts::TAU;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};
use trunkline_codec::frame::{Block, Codec};
use trunkline_codec::{Calibrator, Dtype, Shape, SideTable, gear, quant, rotary_frequencies};

use super::allocations::counted;
use super::measure::{Report, time_ns};
use trunkline::h2o::numbers::Numbers;

const NOTES: [&str; 4] = [
    "Bytes of the block by bytes of the frame; GB/s of bytes of blocks, on one core, checksums included. Every block is decoded and compared.",
    "Predicted frames have statistics of the tokens before those measured; plain frames have none. A block is 16 tokens of all layers.",
    "Gear frames hold up to 128 tokens of one layer's keys or values each, by all predictors.",
    "zstd is level 3 on the upper bytes of a block (BF16: rotated left by one bit) and on the lower bytes, apart.",
];
/// Tokens of a block.
const TOKENS: u16 = 16;
/// Blocks of synthetic KV from which statistics are taken, and blocks measured.
const KNOWN: usize = 32;
const MEASURED: usize = 8;
/// Shape of a block of SmolLM2-135M.
const SHAPE: Shape = Shape { layers: 30, tokens: TOKENS, heads: 3, head_dim: 64 };
const ZSTD_LEVEL: i32 = 3;
/// Maximum number of tokens of a Gear frame; those of the reference.
const LONG: usize = 128;

/// KV of one element type: blocks in the order of their positions.
struct Kv {
    name: String,
    dtype: Dtype,
    shape: Shape,
    blocks: Vec<Vec<u8>>,
    /// Blocks from which statistics are taken; those after are measured.
    known: usize,
}

/// Measures the KV files in a folder, or synthetic KV. `theta` is the base of the rotary embeddings of the files' model.
///
/// # Errors
/// If the folder cannot be read or has no KV file.
pub fn run(folder: Option<&Path>, theta: f64, quick: bool) -> anyhow::Result<Report> {
    let mut report = Report::new("codec", quick, NOTES.to_vec());
    let all = match folder {
        Some(folder) => files(folder)?,
        None => synthetic(quick),
    };
    let rounds = if quick { 2 } else { 15 };
    for kv in &all {
        let table = kv.statistics(if folder.is_some() { theta } else { SYNTHETIC_THETA });
        measure(&mut report, kv, "predicted", &mut Frames::new(kv, Some(&table)), rounds)?;
        if kv.dtype.is_quantised() {
            continue;
        }
        measure(&mut report, kv, "plain", &mut Frames::new(kv, None), rounds)?;
        if matches!(kv.dtype, Dtype::Bf16 | Dtype::F32) {
            measure(&mut report, kv, "fixed", &mut Frames { is_fast: true, ..Frames::new(kv, None) }, rounds)?;
        }
        if matches!(kv.dtype, Dtype::Bf16 | Dtype::F16) {
            measure(&mut report, kv, "zstd", &mut SplitZstd::new(kv)?, rounds.min(5))?;
        }
        if kv.dtype == Dtype::F16 {
            let long = kv.in_long_blocks();
            measure(&mut report, &long, "gear", &mut Gear::new(&long), rounds.min(5))?;
        }
    }
    Ok(report)
}

impl Kv {
    fn statistics(&self, theta: f64) -> SideTable {
        let frequencies = vec![rotary_frequencies(self.shape.head_dim, theta); self.shape.layers.into()];
        let mut calibrator = Calibrator::new(self.shape, frequencies);
        for (at, bytes) in self.blocks[..self.known].iter().enumerate() {
            calibrator.add(self.dtype, position(at), bytes);
        }
        calibrator.finish()
    }

    /// Returns KV of FP16 as quantised KV; `None` if a value is not finite.
    fn quantised(&self, dtype: Dtype) -> Option<Self> {
        let quantise = |block: &Vec<u8>| {
            let halves = block.as_chunks::<2>().0.iter().map(|two| half::f16::from_le_bytes(*two).to_f32());
            let values: Vec<f32> = halves.collect();
            values.iter().all(|value| value.is_finite()).then(|| rounded(dtype, &values))
        };
        let blocks = self.blocks.iter().map(quantise).collect::<Option<_>>()?;
        Some(Self {
            name: format!("{} as {}", self.name, name(dtype)),
            dtype,
            shape: self.shape,
            blocks,
            known: self.known,
        })
    }

    /// Returns the measured tokens, up to 128, as one block in Gear's order: `[layer][keys, values][head][token][dim]`.
    fn in_long_blocks(&self) -> Self {
        let blocks: Vec<&[u8]> = self.measured().map(|(_, bytes)| bytes).take(LONG / usize::from(TOKENS)).collect();
        let (dim, heads) = (2 * usize::from(self.shape.head_dim), usize::from(self.shape.heads));
        let plane = dim * heads * usize::from(TOKENS);
        let mut long = Vec::new();
        for at in 0..2 * usize::from(self.shape.layers) {
            for head in 0..heads {
                for block in &blocks {
                    let tokens = block[at * plane..(at + 1) * plane].chunks_exact(dim * heads);
                    tokens.for_each(|token| long.extend_from_slice(&token[head * dim..(head + 1) * dim]));
                }
            }
        }
        let shape = Shape { tokens: TOKENS * blocks.len() as u16, ..self.shape };
        Self { name: self.name.clone(), dtype: self.dtype, shape, blocks: vec![long], known: 0 }
    }

    /// Returns the blocks to measure, with their positions.
    fn measured(&self) -> impl Iterator<Item = (u32, &[u8])> {
        self.blocks.iter().enumerate().skip(self.known).map(|(at, bytes)| (position(at), &bytes[..]))
    }
}

fn position(block: usize) -> u32 {
    (block * usize::from(TOKENS)) as u32
}

/// Encoder and decoder of blocks.
trait Coding {
    /// Appends the encoded block to `out`.
    fn encode(&mut self, position: u32, bytes: &[u8], out: &mut Vec<u8>) -> anyhow::Result<()>;
    /// Decodes a block into its place.
    fn decode(&mut self, encoded: &[u8], out: &mut [u8]) -> anyhow::Result<()>;
}

/// Encoded and decoded blocks, in memory that is used again.
struct Round<'a> {
    kv: &'a Kv,
    coding: &'a mut dyn Coding,
    encoded: Vec<u8>,
    ends: Vec<usize>,
    decoded: Vec<u8>,
}

impl Round<'_> {
    fn encode(&mut self) -> anyhow::Result<()> {
        self.encoded.clear();
        self.ends.clear();
        for (position, bytes) in self.kv.measured() {
            self.coding.encode(position, bytes, &mut self.encoded)?;
            self.ends.push(self.encoded.len());
        }
        Ok(())
    }

    fn decode(&mut self) -> anyhow::Result<()> {
        let (mut begin, len) = (0, self.decoded.len() / self.ends.len());
        for (end, place) in self.ends.iter().zip(self.decoded.chunks_exact_mut(len)) {
            self.coding.decode(&self.encoded[begin..*end], place)?;
            begin = *end;
        }
        Ok(())
    }
}

/// Adds ratio, speeds and allocations of one way to encode.
fn measure(report: &mut Report, kv: &Kv, how: &str, coding: &mut dyn Coding, rounds: usize) -> anyhow::Result<()> {
    let raw: usize = kv.measured().map(|(_, bytes)| bytes.len()).sum();
    let mut round = Round { kv, coding, encoded: Vec::new(), ends: Vec::new(), decoded: vec![0; raw] };
    // The first round fills buffers and caches.
    round.encode()?;
    round.decode()?;
    let (mut encode, mut decode) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        let mut result = Ok(());
        encode.push(raw as f64 / time_ns(|| result = round.encode()));
        result?;
        round.decoded.fill(0);
        let mut result = Ok(());
        decode.push(raw as f64 / time_ns(|| result = round.decode()));
        result?;
        ensure!(
            kv.measured().flat_map(|(_, bytes)| bytes).eq(&round.decoded),
            "{}: a block came back changed",
            kv.name
        );
    }
    let (result, counted) = counted(|| round.encode().and_then(|()| round.decode()));
    result?;
    let case = format!("{}, {how}", kv.name);
    report.add("ratio", &case, "x", vec![raw as f64 / round.encoded.len() as f64]);
    report.add("encode", &case, "GB/s", encode);
    report.add("decode", &case, "GB/s", decode);
    report.add("allocations", &case, "calls", vec![counted.allocations as f64]);
    Ok(())
}

/// Frames, with or without statistics.
struct Frames<'a> {
    codec: Codec,
    dtype: Dtype,
    shape: Shape,
    table: Option<&'a SideTable>,
    /// `true` for codes of four bits.
    is_fast: bool,
}

impl<'a> Frames<'a> {
    fn new(kv: &Kv, table: Option<&'a SideTable>) -> Self {
        Self { codec: Codec::new(), dtype: kv.dtype, shape: kv.shape, table, is_fast: false }
    }
}

impl Coding for Frames<'_> {
    fn encode(&mut self, position: u32, bytes: &[u8], out: &mut Vec<u8>) -> anyhow::Result<()> {
        let block = Block { dtype: self.dtype, shape: self.shape, position: Some(position), bytes };
        match self.is_fast {
            true => self.codec.encode_fast(&block, out)?,
            false => self.codec.encode(&block, self.table, out)?,
        };
        Ok(())
    }

    fn decode(&mut self, encoded: &[u8], out: &mut [u8]) -> anyhow::Result<()> {
        self.codec.decode_into(encoded, |_| self.table, out)?;
        Ok(())
    }
}

/// zstd on each byte of elements of 16 bits apart.
struct SplitZstd {
    dtype: Dtype,
    compressor: zstd::bulk::Compressor<'static>,
    decompressor: zstd::bulk::Decompressor<'static>,
    plane: Vec<u8>,
}

impl SplitZstd {
    fn new(kv: &Kv) -> anyhow::Result<Self> {
        let compressor = zstd::bulk::Compressor::new(ZSTD_LEVEL)?;
        Ok(Self { dtype: kv.dtype, compressor, decompressor: zstd::bulk::Decompressor::new()?, plane: Vec::new() })
    }

    /// Returns the bits by which elements are rotated left, so that the exponent fills a byte.
    fn rotation(&self) -> u32 {
        u32::from(self.dtype == Dtype::Bf16)
    }
}

impl Coding for SplitZstd {
    fn encode(&mut self, _: u32, bytes: &[u8], out: &mut Vec<u8>) -> anyhow::Result<()> {
        let rotation = self.rotation();
        for shift in [0, 8] {
            let byte = |two: &[u8; 2]| (u16::from_le_bytes(*two).rotate_left(rotation) >> shift) as u8;
            self.plane.clear();
            self.plane.extend(bytes.as_chunks::<2>().0.iter().map(byte));
            let compressed = self.compressor.compress(&self.plane)?;
            out.extend((compressed.len() as u32).to_le_bytes());
            out.extend(compressed);
        }
        Ok(())
    }

    fn decode(&mut self, mut encoded: &[u8], out: &mut [u8]) -> anyhow::Result<()> {
        let mut planes = Vec::new();
        while let Some((len, rest)) = encoded.split_first_chunk::<4>() {
            let (compressed, rest) = rest.split_at(u32::from_le_bytes(*len) as usize);
            let most = zstd::zstd_safe::get_frame_content_size(compressed).ok().flatten().unwrap_or(0);
            planes.push(self.decompressor.decompress(compressed, most as usize)?);
            encoded = rest;
        }
        let rotation = self.rotation();
        let whole = |(low, high): (&u8, &u8)| u16::from_le_bytes([*low, *high]).rotate_right(rotation).to_le_bytes();
        let elements = out.as_chunks_mut::<2>().0.iter_mut().zip(planes[0].iter().zip(&planes[1]));
        elements.for_each(|(element, bytes)| *element = whole(bytes));
        Ok(())
    }
}

/// Gear frames, one for each layer's keys or values.
struct Gear {
    encoder: gear::Encoder,
    plane: usize,
    predictors: Vec<gear::Predictors>,
    decoded: Vec<u8>,
}

impl Gear {
    fn new(kv: &Kv) -> Self {
        let plane = 2 * kv.shape.channels() * usize::from(kv.shape.tokens);
        let predictors = vec![gear::Predictors::ALL; gear::Word::F16.bytes()];
        Self { encoder: gear::Encoder::new(), plane, predictors, decoded: Vec::new() }
    }
}

impl Coding for Gear {
    fn encode(&mut self, _: u32, bytes: &[u8], out: &mut Vec<u8>) -> anyhow::Result<()> {
        for plane in bytes.chunks_exact(self.plane) {
            let begin = out.len();
            out.extend([0; 4]);
            self.encoder.encode(gear::Word::F16, &self.predictors, plane, out)?;
            let len = (out.len() - begin - 4) as u32;
            out[begin..begin + 4].copy_from_slice(&len.to_le_bytes());
        }
        Ok(())
    }

    fn decode(&mut self, mut encoded: &[u8], out: &mut [u8]) -> anyhow::Result<()> {
        for place in out.chunks_exact_mut(self.plane) {
            let (len, rest) = encoded.split_first_chunk::<4>().context("a length before each frame")?;
            let (frame, rest) = rest.split_at(u32::from_le_bytes(*len) as usize);
            self.decoded.clear();
            gear::decode(gear::Word::F16, frame, place.len(), &mut self.decoded)?;
            place.copy_from_slice(&self.decoded);
            encoded = rest;
        }
        Ok(())
    }
}

const SYNTHETIC_THETA: f64 = 100_000.0;

/// Makes KV with the statistics of a small model: keys with means of their channels, rotated to their positions, values with small means.
///
/// Medians and spreads of deviations, and of means by deviations, are those of SmolLM2-135M on English text.
fn synthetic(quick: bool) -> Vec<Kv> {
    let shape = Shape { layers: if quick { 2 } else { SHAPE.layers }, ..SHAPE };
    let (known, measured) = if quick { (4, 2) } else { (KNOWN, MEASURED) };
    let mut draw = Normal(Numbers::from_seed(0));
    let channels: Vec<(f64, f64)> = (0..2 * usize::from(shape.layers) * shape.channels())
        .map(|at| {
            let is_key = (at / shape.channels()).is_multiple_of(2);
            let (scale, spread, ratio, tail) = if is_key { (-0.2, 0.5, 0.8, 1.0) } else { (-0.8, 0.8, 0.16, 0.8) };
            let deviation = (scale + spread * draw.next()).exp2();
            (deviation * ratio * (tail * draw.next()).exp() * draw.next().signum(), deviation)
        })
        .collect();
    let blocks: Vec<Vec<f32>> =
        (0..known + measured).map(|at| block(&shape, position(at), &channels, &mut draw)).collect();
    Dtype::ALL
        .map(|dtype| Kv {
            name: name(dtype).into(),
            dtype,
            shape,
            blocks: blocks.iter().map(|block| rounded(dtype, block)).collect(),
            known,
        })
        .into()
}

fn name(dtype: Dtype) -> &'static str {
    match dtype {
        Dtype::Bf16 => "BF16",
        Dtype::F16 => "FP16",
        Dtype::F32 => "F32",
        Dtype::E4m3 => "E4M3",
        Dtype::E5m2 => "E5M2",
        Dtype::Q8_0 => "Q8_0",
        Dtype::Q4_0 => "Q4_0",
    }
}

/// Makes one block from the means and deviations of the channels of each layer's keys and values.
fn block(shape: &Shape, position: u32, channels: &[(f64, f64)], draw: &mut Normal) -> Vec<f32> {
    let mut block = Vec::with_capacity(shape.rows() * shape.channels());
    for (plane, channels) in channels.chunks_exact(shape.channels()).enumerate() {
        for token in 0..u32::from(shape.tokens) {
            let begin = block.len();
            block.extend(channels.iter().map(|(mean, deviation)| (mean + deviation * draw.next()) as f32));
            if plane % 2 == 0 {
                block[begin..].chunks_exact_mut(shape.head_dim.into()).for_each(|head| rotate(head, position + token));
            }
        }
    }
    block
}

/// Rotates the pairs of a head to a position.
fn rotate(head: &mut [f32], position: u32) {
    let half = head.len() / 2;
    let (first, second) = head.split_at_mut(half);
    for (pair, (a, b)) in first.iter_mut().zip(second).enumerate() {
        let angle = f64::from(position) * SYNTHETIC_THETA.powf(-(pair as f64) / half as f64);
        let (sin, cos) = (angle.sin() as f32, angle.cos() as f32);
        (*a, *b) = (*a * cos - *b * sin, *b * cos + *a * sin);
    }
}

/// Returns the values as bytes of a type, rounded to the nearest; ties to even, but away from zero for FP8.
fn rounded(dtype: Dtype, values: &[f32]) -> Vec<u8> {
    let (elements, len) = dtype.unit();
    let mut bytes = Vec::with_capacity(values.len() / elements * len);
    match dtype {
        Dtype::Bf16 => bytes.extend(values.iter().flat_map(|value| half::bf16::from_f32(*value).to_le_bytes())),
        Dtype::F16 => bytes.extend(values.iter().flat_map(|value| half::f16::from_f32(*value).to_le_bytes())),
        Dtype::F32 => bytes.extend(values.iter().flat_map(|value| value.to_le_bytes())),
        Dtype::E4m3 => bytes.extend(values.iter().map(|value| fp8(*value, 3, 448.0))),
        Dtype::E5m2 => bytes.extend(values.iter().map(|value| fp8(*value, 2, 57_344.0))),
        Dtype::Q8_0 => quant::to_q8_0(values, &mut bytes).expect("values are finite, in whole units"),
        Dtype::Q4_0 => quant::to_q4_0(values, &mut bytes).expect("values are finite, in whole units"),
    }
    bytes
}

/// Returns a value rounded to FP8 with this many bits of mantissa and this greatest value.
fn fp8(value: f32, mantissa: i32, greatest: f32) -> u8 {
    let magnitude = value.abs().min(greatest);
    let least = if mantissa == 3 { -6 } else { -14 };
    let exponent = ((magnitude.to_bits() >> 23) as i32 - 127).max(least);
    // Rounding up to the next power of two carries into the exponent.
    let steps = (magnitude * f32::powi(2.0, mantissa - exponent)).round() as i32;
    let bits = ((exponent - least) << mantissa) + steps;
    ((value.to_bits() >> 31) << 7) as u8 | bits as u8
}

/// Normally distributed pseudo-random numbers.
struct Normal(Numbers);

impl Normal {
    fn next(&mut self) -> f64 {
        let mut unit = || ((self.0.draw() >> 11) as f64 + 0.5) / 2f64.powi(53);
        (-2.0 * unit().ln()).sqrt() * (TAU * unit()).cos()
    }
}

/// Reads every KV file of a folder: NumPy arrays of 16-bit integers `[keys, values][layer][token][head][dim]`, named `*_bf16_*` or `*_f16_*`. Keys
/// are rotated. Half of the tokens give the statistics. Files of FP16 are measured as Q8_0 and Q4_0, too.
fn files(folder: &Path) -> anyhow::Result<Vec<Kv>> {
    let read = fs::read_dir(folder).with_context(|| format!("cannot read the folder {}", folder.display()))?;
    let mut paths = read.map(|entry| Ok(entry?.path())).collect::<anyhow::Result<Vec<PathBuf>>>()?;
    paths.sort();
    let mut all = Vec::new();
    for path in paths.iter().filter(|path| path.extension().is_some_and(|extension| extension == "npy")) {
        let file = path.file_stem().unwrap_or_default().to_string_lossy();
        let types = [("_bf16_", Dtype::Bf16), ("_f16_", Dtype::F16)];
        let Some((_, dtype)) = types.into_iter().find(|(part, _)| file.contains(part)) else { continue };
        let bytes = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
        let kv = blocks_of(&file, dtype, &bytes).with_context(|| format!("cannot use {}", path.display()))?;
        if dtype == Dtype::F16 && kv.shape.channels().is_multiple_of(quant::BLOCK) {
            all.extend([Dtype::Q8_0, Dtype::Q4_0].into_iter().filter_map(|dtype| kv.quantised(dtype)));
        }
        all.push(kv);
    }
    if all.is_empty() {
        bail!("{} has no KV file: name NumPy files *_bf16_*.npy or *_f16_*.npy", folder.display());
    }
    Ok(all)
}

/// Cuts a NumPy file into blocks.
fn blocks_of(file: &str, dtype: Dtype, bytes: &[u8]) -> anyhow::Result<Kv> {
    let header_len = bytes.get(8..10).map_or(0, |len| 10 + usize::from(u16::from_le_bytes([len[0], len[1]])));
    ensure!(bytes.starts_with(b"\x93NUMPY\x01") && header_len < bytes.len(), "not a NumPy file of version 1");
    let header = String::from_utf8_lossy(&bytes[10..header_len]).into_owned();
    let dims = header.split_once("'shape': (").and_then(|(_, rest)| rest.split_once(')')).map_or("", |(dims, _)| dims);
    let dims: Vec<u16> = dims.split(',').filter_map(|dim| dim.trim().parse().ok()).collect();
    let [2, layers, tokens, heads, head_dim] = dims[..] else {
        bail!("the array has the dimensions {dims:?} instead of [2, layers, tokens, heads, dim]");
    };
    let shape = Shape { layers, tokens: TOKENS, heads, head_dim };
    let row = 2 * shape.channels();
    let plane = row * usize::from(tokens);
    let data = &bytes[header_len..];
    ensure!(tokens >= 2 * TOKENS && row > 0, "fewer than {} tokens", 2 * TOKENS);
    ensure!(data.len() == 2 * usize::from(layers) * plane, "{} bytes of data for {dims:?}", data.len());
    let n = usize::from(tokens / TOKENS);
    let cut = |block: usize| {
        let planes = (0..2 * usize::from(layers)).map(|at| (at % 2) * usize::from(layers) + at / 2);
        planes
            .flat_map(move |at| &data[at * plane + block * row * usize::from(TOKENS)..][..row * usize::from(TOKENS)])
            .copied()
    };
    Ok(Kv { name: file.into(), dtype, shape, blocks: (0..n).map(|block| cut(block).collect()).collect(), known: n / 2 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_made_and_read_without_allocations() {
        let report = serde_json::to_value(run(None, 1e4, true).unwrap()).unwrap();
        let allocations = report["rows"].as_array().unwrap().iter().filter(|row| row["what"] == "allocations");
        let (zstd, frames): (Vec<_>, Vec<_>) = allocations
            .partition(|row| ["zstd", "gear"].iter().any(|end| row["case"].as_str().unwrap().ends_with(end)));
        assert!(zstd.iter().all(|row| row["max"].as_f64() > Some(0.0)), "allocations are counted");
        assert!(frames.len() >= 10 && frames.iter().all(|row| row["max"] == 0.0), "{frames:?}");
    }

    #[test]
    fn files_are_cut_into_blocks_of_layers() {
        let folder = tempfile::tempdir().unwrap();
        assert!(run(Some(folder.path()), 1e4, true).unwrap_err().to_string().contains("no KV file"));
        let dims = "{'descr': '<i2', 'fortran_order': False, 'shape': (2, 3, 40, 1, 4), }";
        let mut bytes = b"\x93NUMPY\x01\x00\x76\x00".to_vec();
        bytes.extend(format!("{dims:<117}\n").bytes());
        bytes.extend((0..2 * 3 * 40 * 4u16).flat_map(u16::to_le_bytes));
        fs::write(folder.path().join("some_bf16_kv.npy"), &bytes).unwrap();
        let all = files(folder.path()).unwrap();
        assert_eq!((all[0].blocks.len(), all[0].known, all[0].shape.layers), (2, 1, 3));
        let element = |at: usize| u16::from_le_bytes([all[0].blocks[1][2 * at], all[0].blocks[1][2 * at + 1]]);
        // The second block begins at token 16 of the first layer's keys; the values of that layer follow.
        assert_eq!([element(0), element(16 * 4)], [16 * 4, 3 * 40 * 4 + 16 * 4]);
        assert!(run(Some(folder.path()), 1e4, true).unwrap().render().contains("some_bf16_kv"));
        bytes.pop();
        fs::write(folder.path().join("some_bf16_kv.npy"), &bytes).unwrap();
        assert!(format!("{:#}", files(folder.path()).err().unwrap()).contains("bytes of data"));
    }
}
