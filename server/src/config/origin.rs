//! The origin of a configuration: a file, or a command line that stands for one.

use std::io;
use std::path::{Path, PathBuf};

use crate::handler::HandlerSettings;

use super::{Config, Loaded, Report};

/// The origin of a configuration, read at the start and at each reload.
#[derive(Debug, Clone)]
pub enum Origin {
    /// A file, read again each time.
    File(PathBuf),
    /// A command line, which never changes. A reload only finds changes of the folder and of the logs.
    Line(Box<Config>),
}

/// The names that a user of this origin knows settings by, for messages.
#[derive(Debug)]
pub struct Spelling {
    pub address: &'static str,
    pub admin: &'static str,
    pub workers: &'static str,
    pub drain: &'static str,
}

const IN_A_FILE: Spelling = Spelling {
    address: "'address' of [[listen]]",
    admin: "'address' of [admin]",
    workers: "'workers'",
    drain: "'drain'",
};

const ON_A_LINE: Spelling = Spelling {
    address: "-l",
    admin: "--admin",
    workers: "-w",
    drain: "--drain",
};

impl Origin {
    /// Reads and checks the configuration. `root` is the root folder of this process, if it has changed it.
    ///
    /// # Errors
    /// When the file cannot be read, or has mistakes: the report lists all of them.
    ///
    /// # Blocks the thread
    /// While the file is read.
    pub fn load(&self, root: Option<&Path>) -> Result<Loaded, Report> {
        match self {
            Origin::File(file) => super::load(file, root),
            Origin::Line(config) => Ok((**config).clone().into()),
        }
    }

    /// The file, if there is one.
    pub fn file(&self) -> Option<&Path> {
        match self {
            Origin::File(file) => Some(file),
            Origin::Line(_) => None,
        }
    }

    /// Checks that the folder of a command line is there.
    ///
    /// # Errors
    /// The folder, and why it cannot be served.
    ///
    /// # Blocks the thread
    /// While the disk is asked.
    pub fn check_folder(&self) -> Result<(), (&Path, io::Error)> {
        let Origin::Line(config) = self else { return Ok(()) };
        let HandlerSettings::Files(files) = &config.sites[0].routes[0].handler else {
            return Ok(());
        };
        match std::fs::read_dir(&files.root) {
            Ok(_) => Ok(()),
            Err(error) => Err((&files.root, error)),
        }
    }

    pub fn spelling(&self) -> &'static Spelling {
        match self {
            Origin::File(_) => &IN_A_FILE,
            Origin::Line(_) => &ON_A_LINE,
        }
    }

    /// The name for messages: the file, the folder, or `the welcome site`.
    pub fn name(&self) -> String {
        match self {
            Origin::File(file) => file.display().to_string(),
            Origin::Line(config) => match &config.sites[0].routes[0].handler {
                HandlerSettings::Files(files) => format!("'{}'", files.root.display()),
                _ => "the welcome site".into(),
            },
        }
    }

    /// The name, followed by the size of a file's configuration in parentheses:
    /// `site.toml (2 sites, 5 routes, 1 listener)`.
    pub fn describe(&self, config: &Config) -> String {
        match self {
            Origin::File(_) => format!("{} ({})", self.name(), config.summary()),
            Origin::Line(_) => self.name(),
        }
    }
}
