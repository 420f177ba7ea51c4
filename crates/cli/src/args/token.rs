//! Arguments of `homestak token`.

use clap::Subcommand;
use clap::builder::NonEmptyStringValueParser;

/// Commands on tokens.
#[derive(Debug, Subcommand)]
pub enum TokenCommand {
    /// Create a token with which a node can fetch its spec
    Mint {
        /// Name of the node
        #[arg(value_name = "NODE")]
        node: String,
        /// Name of the spec
        #[arg(value_name = "SPEC")]
        spec: String,
    },
    /// Show the claims of a token
    Inspect {
        /// The token; `-` reads it from stdin
        token: String,
        /// Check the signature too
        #[arg(long)]
        verify: bool,
    },
    /// List the tokens that were issued for nodes, as the server knows them
    List,
    /// Revoke a token: the server refuses it from now on
    Revoke {
        /// Id of the token, as `token list` shows it
        #[arg(value_parser = NonEmptyStringValueParser::new())]
        id: String,
    },
    /// Check that a token was issued by this site
    Verify {
        /// The token; `-` reads it from stdin
        token: String,
        /// Also check that it was issued for this node
        #[arg(long, value_name = "NAME")]
        node: Option<String>,
    },
}
