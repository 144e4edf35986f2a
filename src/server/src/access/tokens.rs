//! Bearer tokens with roles, from a file.
//!
//! A line of the file is `TOKEN ROLE [NAME]`; empty lines and lines that begin with `#` are skipped. The name is the identity of
//! the holder: two tokens with one name, as during a rotation, are one owner of requests and one tenant. Without a name, each token
//! is an owner and a tenant of its own. Only digests of the tokens are kept in memory.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ring::digest::{SHA256, digest};
use subtle::{ConditionallySelectable, ConstantTimeEq};
use trunkline_quote::quoted;

use crate::network::right::Right;

/// Shortest token, characters. Tokens ought to be random: `openssl rand -hex 16` makes one of 32.
const TOKEN_MIN: usize = 16;
/// Longest name, bytes: a name is also a tenant, and tenants have no longer names.
const NAME_BYTES_MAX: usize = 1024;
/// Maximum number of tokens in a file: each call is compared with all of them.
const TOKENS_MAX: usize = 4096;

/// Rights of the holder of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// Generate, abort own requests, read facts of the model and limits of the server.
    Generate,
    /// All of that, and flush the cache, read all counters, abort requests of others.
    Admin,
    /// Attach as a model worker, and nothing else.
    Worker,
}

/// Holder of a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Holder {
    pub(crate) name: Arc<str>,
    pub(crate) role: Role,
}

/// The tokens of a file.
#[derive(Debug, Default)]
pub(crate) struct Tokens(Vec<Entry>);

/// A token: its digest, who holds it, and the right that lasts as long as both.
#[derive(Debug)]
struct Entry {
    digest: [u8; 32],
    holder: Holder,
    right: Right,
}

/// Reason for not using a file of tokens. No message contains a token.
#[derive(Debug, thiserror::Error)]
pub enum TokenFileError {
    /// The file cannot be read.
    #[error("cannot read the token file {}: {source}", path.display())]
    Read {
        /// Path of the file.
        path: PathBuf,
        /// Error of the operating system.
        source: std::io::Error,
    },
    /// A line is malformed.
    #[error("token file {}, line {line}: {problem}", path.display())]
    Line {
        /// Path of the file.
        path: PathBuf,
        /// Number of the line, from 1.
        line: usize,
        /// Mistake, and the way to correct it.
        problem: String,
    },
    /// Nobody could use the server.
    #[error("token file {}: there is no token; write lines of the form TOKEN ROLE [NAME]", path.display())]
    Empty {
        /// Path of the file.
        path: PathBuf,
    },
}

impl Tokens {
    /// Reads a file.
    pub(crate) fn load(path: &Path) -> Result<Self, TokenFileError> {
        let text = fs::read_to_string(path).map_err(|source| TokenFileError::Read { path: path.into(), source })?;
        let tokens =
            Self::parse(&text).map_err(|(line, problem)| TokenFileError::Line { path: path.into(), line, problem })?;
        if tokens.0.is_empty() {
            return Err(TokenFileError::Empty { path: path.into() });
        }
        Ok(tokens)
    }

    /// Parses the text of a file; an error names the line.
    fn parse(text: &str) -> Result<Self, (usize, String)> {
        let mut tokens = Self::default();
        for (number, line) in (1..).zip(text.lines()) {
            if !line.trim().is_empty() && !line.trim_start().starts_with('#') {
                let (digest, holder) = parse_line(line).map_err(|problem| (number, problem))?;
                if tokens.0.iter().any(|other| other.digest == digest) {
                    return Err((number, "the token occurs twice; remove one of the lines".into()));
                }
                tokens.0.push(Entry { digest, holder, right: Right::default() });
            }
            if tokens.0.len() > TOKENS_MAX {
                return Err((number, format!("there are more than {TOKENS_MAX} tokens")));
            }
        }
        Ok(tokens)
    }

    /// Takes the place of the tokens before: those with the same holder keep their right, and the rights of all others are withdrawn.
    pub(crate) fn replace(&mut self, before: Self) {
        for old in before.0 {
            match self.0.iter_mut().find(|new| new.digest == old.digest && new.holder == old.holder) {
                Some(new) => new.right = old.right,
                None => old.right.withdraw(),
            }
        }
    }

    /// Returns the holder of a token, and the token's right. Takes the same time for every token, valid or not.
    pub(crate) fn holder(&self, token: &str) -> Option<(&Holder, &Right)> {
        let digest = digest_of(token);
        let mut found = u32::MAX;
        for (at, other) in (0..).zip(&self.0) {
            found.conditional_assign(&at, digest.ct_eq(&other.digest));
        }
        self.0.get(found as usize).map(|entry| (&entry.holder, &entry.right))
    }
}

fn parse_line(line: &str) -> Result<([u8; 32], Holder), String> {
    let mut words = line.split_whitespace();
    let token = words.next().unwrap_or_default();
    if token.len() < TOKEN_MIN {
        let n = token.len();
        return Err(format!("the token has {n} characters; it needs {TOKEN_MIN} (`openssl rand -hex 16` makes one)"));
    }
    if !token.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err("the token has characters other than printable ASCII".into());
    }
    let role = match words.next() {
        Some("generate") => Role::Generate,
        Some("admin") => Role::Admin,
        Some("worker") => Role::Worker,
        Some(other) => {
            return Err(format!(
                "there is no role {other}; the roles are generate, admin and worker",
                other = quoted(other)
            ));
        }
        None => return Err("the role is missing after the token; the roles are generate, admin and worker".into()),
    };
    let digest = digest_of(token);
    let name = match words.next() {
        Some(name) if name.len() > NAME_BYTES_MAX => {
            return Err(format!("the name has {} bytes; at most {NAME_BYTES_MAX} are allowed", name.len()));
        }
        Some(name) => name.into(),
        None => digest.iter().map(|byte| format!("{byte:02x}")).collect::<String>().into(),
    };
    if words.next().is_some() {
        return Err("there are words after the name; a line is TOKEN ROLE [NAME]".into());
    }
    Ok((digest, Holder { name, role }))
}

fn digest_of(token: &str) -> [u8; 32] {
    digest(&SHA256, token.as_bytes()).as_ref().try_into().expect("SHA-256 has 32 bytes")
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: &str = "aaaaaaaaaaaaaaaa";
    const B: &str = "bbbbbbbbbbbbbbbb";
    const C: &str = "cccccccccccccccc";

    #[test]
    fn lines_are_token_role_and_name() {
        let text = format!("# staff\n\n{A} admin  ops\n  {B}\tgenerate\n{C} worker gpu\n");
        let tokens = Tokens::parse(&text).unwrap();
        let holder = |token| tokens.holder(token).map(|(holder, _)| holder);
        assert_eq!(holder(C), Some(&Holder { name: "gpu".into(), role: Role::Worker }));
        assert_eq!(holder(A), Some(&Holder { name: "ops".into(), role: Role::Admin }));
        let nameless = holder(B).unwrap();
        assert_eq!((nameless.role, nameless.name.len()), (Role::Generate, 64));
        assert_eq!((holder(""), holder("aaaaaaaaaaaaaaab"), holder("ops")), (None, None, None));
        assert!(Tokens::default().holder(A).is_none());
    }

    #[test]
    fn a_right_lasts_while_the_token_has_its_role_and_name() {
        let lasts = |before: &str, after: &str| {
            let (before, mut after) = (Tokens::parse(before).unwrap(), Tokens::parse(after).unwrap());
            let right = before.holder(A).unwrap().1.clone();
            after.replace(before);
            let goes_on = after.holder(A).is_some_and(|(_, new)| !new.is_withdrawn());
            assert_eq!(goes_on, after.holder(A).is_some(), "a new right is valid");
            !right.is_withdrawn()
        };
        let before = format!("{A} generate alice\n{B} admin ops\n");
        assert!(lasts(&before, &before));
        assert!(lasts(&before, &format!("# more\n{C} worker gpu\n{B} admin ops\n  {A}   generate alice")));
        assert!(lasts(&format!("{A} generate"), &format!("{A} generate")), "a token without a name");
        for after in ["{B} admin ops", "{A} admin alice", "{A} generate bob", "{A} generate", "{C} generate alice"] {
            let after = after.replace("{A}", A).replace("{B}", B).replace("{C}", C);
            assert!(!lasts(&before, &after), "{after}");
        }
    }

    #[test]
    fn a_mistake_names_its_line_and_no_token() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tokens");
        let load = |text: &str| {
            fs::write(&path, text).unwrap();
            let message = Tokens::load(&path).unwrap_err().to_string();
            assert!(!message.contains(A) && !message.contains('\n'), "{message}");
            message.replace(&path.display().to_string(), "FILE")
        };
        assert_eq!(load("# none\n"), "token file FILE: there is no token; write lines of the form TOKEN ROLE [NAME]");
        assert!(load("short admin\n").starts_with("token file FILE, line 1: the token has 5 characters; it needs 16"));
        let message = load(&format!("#\n{A} root\n"));
        assert_eq!(
            message,
            "token file FILE, line 2: there is no role 'root'; the roles are generate, admin and worker"
        );
        assert!(load(A).contains("line 1: the role is missing"));
        assert!(load(&format!("{A} admin a b")).contains("line 1: there are words after the name"));
        assert!(load(&format!("{A} admin {}", "a".repeat(1025))).contains("line 1: the name has 1025 bytes"));
        assert!(load(&format!("{A} admin a\n{A} generate b")).contains("line 2: the token occurs twice"));
        assert!(load("aaaaaaaaaaaaaaaä admin").contains("printable ASCII"));
        let message = Tokens::load(Path::new("none")).unwrap_err().to_string();
        assert!(message.starts_with("cannot read the token file none: "), "{message}");
    }
}
