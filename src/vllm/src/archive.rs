//! ZIP archives of a few small files, as APPNOTE 6.3 has them: deflated, without times, comments or the extensions for more than 4 GiB.

use std::io::{self, Write};

use flate2::write::DeflateEncoder;
use flate2::{Compression, Crc};

/// Marks of the header of a file, of its entry in the directory, and of the end of the directory.
const LOCAL: u32 = 0x0403_4b50;
const CENTRAL: u32 = 0x0201_4b50;
const END: u32 = 0x0605_4b50;
/// Version 2.0 of the format: files may be deflated.
const VERSION: u16 = 20;
/// Names are UTF-8.
const FLAGS: u16 = 1 << 11;
const DEFLATED: u16 = 8;
/// 1 January 1980, the first day of the format.
const DATE: u16 = 1 << 5 | 1;

fn short(out: &mut Vec<u8>, values: &[u16]) {
    out.extend(values.iter().flat_map(|value| value.to_le_bytes()));
}

fn long(out: &mut Vec<u8>, values: &[u32]) {
    out.extend(values.iter().flat_map(|value| value.to_le_bytes()));
}

/// Returns an archive of files by name, which take less than 4 GiB together.
///
/// # Errors
/// If a file is too long for the format.
pub(crate) fn zip(files: &[(String, Vec<u8>)]) -> io::Result<Vec<u8>> {
    let size = |len: usize| u32::try_from(len).map_err(|_| io::Error::from(io::ErrorKind::FileTooLarge));
    let (mut out, mut directory) = (Vec::new(), Vec::new());
    for (name, bytes) in files {
        let at = size(out.len())?;
        let mut crc = Crc::new();
        crc.update(bytes);
        let mut encoder = DeflateEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(bytes)?;
        let deflated = encoder.finish()?;
        let mut about = Vec::new();
        short(&mut about, &[VERSION, FLAGS, DEFLATED, 0, DATE]);
        long(&mut about, &[crc.sum(), size(deflated.len())?, size(bytes.len())?]);
        let name_len = u16::try_from(name.len()).map_err(|_| io::Error::from(io::ErrorKind::InvalidFilename))?;
        short(&mut about, &[name_len, 0]);

        long(&mut out, &[LOCAL]);
        out.extend_from_slice(&about);
        out.extend_from_slice(name.as_bytes());
        out.extend_from_slice(&deflated);

        long(&mut directory, &[CENTRAL]);
        short(&mut directory, &[VERSION]);
        directory.extend_from_slice(&about);
        short(&mut directory, &[0, 0, 0]);
        long(&mut directory, &[0, at]);
        directory.extend_from_slice(name.as_bytes());
    }
    let n = u16::try_from(files.len()).map_err(|_| io::Error::from(io::ErrorKind::FileTooLarge))?;
    let at = size(out.len())?;
    let directory_bytes = size(directory.len())?;
    out.extend(directory);
    long(&mut out, &[END]);
    short(&mut out, &[0, 0, n, n]);
    long(&mut out, &[directory_bytes, at]);
    short(&mut out, &[0]);
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_archive_has_each_file_and_a_directory_as_the_format_says() {
        // Python's zipfile reads these bytes.
        let archive = zip(&[("a.json".into(), b"{}".to_vec())]).unwrap();
        let hex: String = archive.iter().map(|byte| format!("{byte:02x}")).collect();
        let about = "1400000808000000210043bfa6a3040000000200000006000000";
        let expected = [
            format!("504b0304{about}612e6a736f6eabae0500"),
            format!("504b01021400{about}0000000000000000000000000000612e6a736f6e"),
            "504b0506000000000100010034000000280000000000".to_owned(),
        ];
        assert_eq!(hex, expected.concat());
    }
}
