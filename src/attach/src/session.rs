//! Session of an attached worker: the server's answer to a Hello.

use std::time::Duration;

use crate::hello::Hello;
use crate::wire;

/// Settings of a session, from the server's Welcome.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Session {
    /// Name of the session, for [`crate::Resume`].
    pub name: String,
    /// Present life of the worker's KV.
    pub life: u64,
    /// `true` if an earlier session continues: the worker keeps all KV.
    pub resumed: bool,
    /// Number of the engine behind the worker.
    pub engine: u32,
    /// Tokens of a block.
    pub block_size: u32,
    /// Blocks in use, numbered from 0.
    pub blocks: u32,
    /// Maximum number of steps in flight; at least 1.
    pub steps_in_flight: u32,
    /// Maximum number of drafts for a sequence in one step.
    pub max_drafts: u32,
    /// Longest time between two messages of a side.
    pub heartbeat: Duration,
    /// Time without any message after which a connection counts as broken.
    pub silence: Duration,
    /// Time for which the server waits for a worker to come back.
    pub resume: Duration,
    /// Memory that the server shares on this connection.
    pub shared_memory: Option<wire::SharedMemory>,
}

/// Reason for refusing a Welcome.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("welcome: {field} is {value}; it must be {range}")]
pub struct WelcomeFault {
    /// Name of the field.
    pub field: &'static str,
    /// Value in the message.
    pub value: u64,
    /// Valid values, in words.
    pub range: &'static str,
}

impl Session {
    /// Converts the settings to a message.
    pub fn encode(&self) -> wire::Welcome {
        let ms = |time: Duration| time.as_millis().min(u32::MAX.into()) as u32;
        wire::Welcome {
            session: self.name.clone(),
            life: self.life,
            resumed: self.resumed,
            engine: self.engine,
            block_size: self.block_size,
            blocks: self.blocks,
            steps_in_flight: self.steps_in_flight,
            max_drafts: self.max_drafts,
            heartbeat_ms: ms(self.heartbeat),
            silence_ms: ms(self.silence),
            resume_ms: ms(self.resume),
            shared_memory: self.shared_memory.clone(),
        }
    }
}

impl Hello {
    /// Converts the server's answer to settings, and checks the answer against this announcement.
    ///
    /// # Errors
    /// If the server asks for more than the worker announced, or continues a session unknown to the worker.
    pub fn accept(&self, message: wire::Welcome) -> Result<Session, WelcomeFault> {
        let check = |field, value: u64, good: bool, range| {
            if good { Ok(()) } else { Err(WelcomeFault { field, value, range }) }
        };
        let block_size = message.block_size;
        let known = self.kv.block_sizes.contains(&block_size) && block_size > 0;
        check("block_size", block_size.into(), known, "a size that the worker announced")?;
        let most = self.kv.tokens / u64::from(block_size);
        let blocks = u64::from(message.blocks);
        check("blocks", blocks, (1..=most).contains(&blocks), "at least 1 and no more than the worker has")?;
        let (steps, own) = (message.steps_in_flight, self.abilities.steps_in_flight);
        check("steps_in_flight", steps.into(), (1..=own).contains(&steps), "at least 1 and no more than announced")?;
        let (drafts, own) = (message.max_drafts, self.abilities.max_drafts);
        check("max_drafts", drafts.into(), drafts <= own, "no more than announced")?;
        let (beat, silence) = (message.heartbeat_ms, message.silence_ms);
        check("heartbeat_ms", beat.into(), beat >= 1, "at least 1")?;
        check("silence_ms", silence.into(), silence > beat, "above heartbeat_ms")?;
        if message.resumed {
            let life = self.resume.as_ref().map(|resume| resume.life);
            check("life", message.life, life == Some(message.life), "the life of the session that the worker resumes")?;
        }
        let ms = |time: u32| Duration::from_millis(time.into());
        Ok(Session {
            name: message.session,
            life: message.life,
            resumed: message.resumed,
            engine: message.engine,
            block_size,
            blocks: message.blocks,
            steps_in_flight: steps,
            max_drafts: drafts,
            heartbeat: ms(beat),
            silence: ms(silence),
            resume: ms(message.resume_ms),
            // A server that shares memory all the same is not believed.
            shared_memory: message.shared_memory.filter(|_| self.abilities.shared_memory),
        })
    }
}
