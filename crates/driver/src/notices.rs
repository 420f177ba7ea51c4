//! Who hears what the driver has to say beside its results and the events of runs.
//!
//! In: notices as they come up. Out: whatever the caller does with them.
//! Never: something a caller needs to go on; that is in results and errors.

use homestak_core::doc::{Faults, Sources};

/// Something that a person may want to know.
#[derive(Clone, Copy)]
pub enum Notice<'a> {
    /// What is being done, for those who want to know more.
    Detail(&'a str),
    /// What a person should know.
    Say(&'a str),
    /// What documents lack.
    Faults(&'a Faults, &'a Sources),
}

/// Where notices go.
pub trait Notices: Send + Sync {
    /// Takes one.
    fn notice(&self, notice: Notice<'_>);
}

impl dyn Notices + '_ {
    /// Says what is being done.
    pub fn detail(&self, text: &str) {
        self.notice(Notice::Detail(text));
    }

    /// Says what a person should know.
    pub fn say(&self, text: &str) {
        self.notice(Notice::Say(text));
    }

    /// Hands over what documents lack.
    pub fn faults(&self, faults: &Faults, sources: &Sources) {
        self.notice(Notice::Faults(faults, sources));
    }
}
