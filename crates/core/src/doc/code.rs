//! The stable codes of diagnostics, with title and explanation: the table behind `homestak explain`
//! and the reference page. A code never changes its meaning, and a retired one is never reused.

/// Declares the enum and the table from one list, so that they cannot differ.
macro_rules! codes {
    ($($variant:ident $id:literal $title:literal $text:literal)*) => {
        /// The code of a diagnostic.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Code { $(#[doc = $title] $variant,)* }

        impl Code {
            /// Every code, in the order of the reference page.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// Returns the code as printed, such as `SK0201`.
            pub fn id(self) -> &'static str {
                match self { $(Self::$variant => $id,)* }
            }

            /// Returns the short title.
            pub fn title(self) -> &'static str {
                match self { $(Self::$variant => $title,)* }
            }

            /// Returns the explanation: what it means and how to fix it.
            pub fn explanation(self) -> &'static str {
                match self { $(Self::$variant => $text,)* }
            }
        }
    };
}

codes! {
    // Reading: files and YAML.
    Unreadable "SK0101" "file cannot be read"
        "The file exists but could not be read. Check its owner and mode."
    NotText "SK0102" "file is not text"
        "Documents are UTF-8 text. The file contains other bytes or control characters."
    TooLarge "SK0103" "file is too large"
        "A document may have up to 16 MiB. Split it into several."
    Syntax "SK0104" "not valid YAML"
        "The text is not valid YAML from this position on. Nothing after it was checked."
    DuplicateKey "SK0105" "duplicate key"
        "A mapping has the same key twice. YAML parsers disagree on which value is used, so this is an error."
    TooDeep "SK0106" "nested too deeply"
        "Values are nested deeper than any document needs. This guards against hostile input."
    TooManyValues "SK0107" "too many values"
        "The document has more values than any document needs, with aliases expanded. This guards against YAML bombs."
    SeveralDocuments "SK0108" "more than one document"
        "A file contains one document. A second `---` starts another one."
    KeyNotText "SK0109" "key is not a string"
        "Keys are strings. Lists and mappings cannot be keys."
    Tag "SK0110" "unsupported tag"
        "Only standard YAML tags are supported, not application tags such as `!vault` or `!!python/object`."
    EmptyDocument "SK0111" "document is empty"
        "The file is empty or has only comments. Add content or delete the file."

    // Structure: keys, types, values.
    UnknownKey "SK0201" "unknown key"
        "The key is not defined here. Unknown keys are errors, because a misspelt key would silently have no effect."
    WrongType "SK0202" "wrong type"
        "The value has a different type than the key requires, for example a string instead of a list."
    MissingKey "SK0203" "missing key"
        "A required key is missing."
    UnknownChoice "SK0204" "not one of the choices"
        "The key accepts a fixed set of values, and this is not one of them."
    BareYesNo "SK0205" "unquoted yes or no"
        "YAML parsers disagree on whether an unquoted `yes`, `no`, `on` or `off` is a string or a boolean. Quote it if a string is meant; write true or false if a boolean is meant."
    OutOfRange "SK0206" "number out of range"
        "The number is outside the allowed range."
    Malformed "SK0207" "malformed value"
        "The value does not have the required format, for example that of an address, a duration or a checksum."
    Empty "SK0208" "empty value"
        "The key has no value, and one is required here."
    InvalidName "SK0209" "invalid name"
        "Names of nodes become host names: lower-case letters, digits and hyphens, starting with a letter, up to 63 characters. Names of documents and regions follow the same rule, with dots and underscores allowed."
    SchemaVersion "SK0210" "unsupported schema version"
        "The document has a schema version that this program does not support."
    ManifestV1 "SK0211" "manifest of schema version 1"
        "Manifests with `levels` are no longer supported. `homestak manifest migrate FILE` converts them to `nodes`."
    WrongNodeType "SK0212" "key of another node type"
        "The key belongs to another type of node: `template` and `unprivileged` to `ct`, `hardware` and `access.api` to `pve`, `image` to all but `ct`."
    Repeated "SK0213" "listed twice"
        "The list has the same item twice."
    IneffectiveKey "SK0214" "key without effect"
        "The key has no effect beside the other keys, for example the field of another trigger, or `interval` where no node with the spec fetches specs or has `trigger: schedule`. Remove it."

    // References between documents.
    NoSuchSpec "SK0301" "no such spec"
        "A node names a spec that is not in `specs/`."
    NoSuchPreset "SK0302" "no such preset"
        "A node or the site defaults name a preset that is not in `presets/`."
    NoSuchPosture "SK0303" "no such posture"
        "A spec names a posture that is not in `postures/`. A spec that names none uses `prod`, or strict built-in settings where the site has no such posture."
    NoSuchSshKey "SK0304" "no such SSH key"
        "A list of SSH keys names an id that is not under `ssh_keys` in `secrets.yaml`."
    NoSuchApiToken "SK0305" "no such API token"
        "A node names an API token that is not under `api_tokens` in `secrets.yaml`."
    NoSuchImage "SK0306" "no such image"
        "A node or the site defaults name an image that is neither in `images/` nor built in, as a name or as an alias."
    NoSuchParent "SK0307" "no such parent"
        "`parent` names neither a node of this manifest nor the host it runs on."
    NoSuchPeer "SK0308" "no such peer"
        "`peers` lists a name that is not a node of this manifest."
    NoSuchHub "SK0309" "no such hub"
        "`hub` is not a node of this manifest."
    NoSuchRegion "SK0310" "no such region"
        "`region` or `links` name a region that `regions` does not list."
    NoSuchHost "SK0311" "no such host"
        "`host` is neither in `nodes/` nor in `hosts/`."
    NoSuchNetwork "SK0312" "no such network"
        "`network` is not under `networks` in `site.yaml`."
    NoSuchManifest "SK0313" "no such manifest"
        "There is no manifest of that name in the site."
    MissingImage "SK0314" "no image or template"
        "A node needs an image (`vm`, `pve`, `k3s`) or a template (`ct`), set on the node or in the defaults of `site.yaml`."
    MissingPreset "SK0315" "no preset"
        "A node needs a `preset`, set on the node or in the defaults of `site.yaml`."
    NoSuchWebhook "SK0316" "no such webhook"
        "A spec names a webhook whose secret is not under `auth.webhooks` in `secrets.yaml`."

    // The graph.
    DuplicateNode "SK0401" "node defined twice"
        "Two nodes of the manifest have the same name. The name identifies the node: host name, token, state."
    Cycle "SK0402" "parents form a cycle"
        "Each of these nodes would have to exist before the other. Remove one of the `parent` keys shown."
    CannotHost "SK0403" "parent cannot host"
        "Children run on a hypervisor: a node of type `pve`, or a `vm` whose spec has `config.pve` or the package `proxmox-ve`."
    PatternMismatch "SK0404" "pattern contradicts the graph"
        "`pattern` does not match the graph. Change one of them, or remove `pattern` to have it derived."
    BadPeer "SK0405" "invalid peer"
        "A node cannot be its own peer, nor the peer of a node that it runs on."
    BadHub "SK0406" "invalid hub"
        "A hub-spoke manifest has one hub, at the top, and at least one spoke."
    BadRegion "SK0407" "invalid region"
        "Each region has at least one node, and a child is in the region of its parent."
    BadLink "SK0408" "invalid link"
        "A link connects two different regions, and each pair is linked once."
    BadHost "SK0409" "invalid host"
        "A child runs where its parent runs, so it cannot name a host of its own."
    TriggerMode "SK0410" "trigger needs the mode pull"
        "With the triggers `webhook` and `git`, the server queues a job that makes the node fetch its spec. Only nodes with the mode `pull` take jobs from the server."

    // Numbers and addresses.
    DuplicateVmid "SK0501" "vmid used twice"
        "Two guests of one host would have the same id."
    OutsideNetwork "SK0502" "address outside its network"
        "The address or gateway is not in its network."
    DuplicateAddress "SK0503" "address used twice"
        "Two machines would have the same address."
    UnusableAddress "SK0504" "address cannot be used"
        "The address is the network's own, its broadcast address, its gateway, or not a unicast address."

    // Secrets.
    PlaintextSecrets "SK0601" "plaintext secrets in git"
        "`secrets.yaml` is tracked by git and not encrypted. Remove it from the index and commit the encrypted form; secrets that were pushed must be replaced."
    OpenPermissions "SK0602" "secrets readable by others"
        "The secrets file can be read by other users. Set its mode to 0600."
    Sealed "SK0603" "secrets cannot be decrypted"
        "The encrypted secrets could not be decrypted: no key fits, or the file was changed after it was encrypted."
    SigningKey "SK0604" "signing key malformed"
        "`auth.signing_key` is 64 hexadecimal digits (32 bytes)."
    NotSealed "SK0605" "encrypted file is plain text"
        "Files whose names end in `.enc` are committed as encrypted, and this one is plain text. Encrypt it with `homestak secrets encrypt --in-place FILE`; secrets that were pushed must be replaced."
    SecretsDiffer "SK0606" "plain and encrypted secrets differ"
        "`secrets.yaml` and `secrets.yaml.enc` both exist and differ, or cannot be compared because one of them cannot be decrypted. Using either could bring back a secret that was removed from the other, so neither is used. Delete the plain file, or encrypt it again and then delete it."
    WebhookSecret "SK0607" "secret of a webhook unusable"
        "Whoever knows the secret of a webhook can start runs, so it must not be guessable: at least 16 characters, or `whsec_` and 24 bytes or more in Base64."

    // Safety.
    SudoNeedsPassword "SK0701" "sudo needs a password the user does not have"
        "Users of a spec have keys and no passwords. Under a posture whose sudo asks for a password (`nopasswd: false`, the default), `sudo: true` could never be used. The user that homestak itself logs in as is not affected: its rule needs no password."
    UncheckedSource "SK0702" "image over plain HTTP without a checksum"
        "An attacker on the network could replace the image. Add its checksum, or use an `https://` URL."

    // Notices: the document is valid.
    OldName "SK0901" "deprecated name"
        "The name is deprecated and still accepted. Use the new one."
    NameDiffers "SK0902" "name and file differ"
        "The file's name is the document's identity; the name inside differs."
    AssumedVersion "SK0903" "schema version assumed"
        "The document has no schema version; the current one is assumed."
    ParentIsHost "SK0904" "parent is the host itself"
        "`parent` is the host that the manifest runs on. Nodes without a parent run there anyway."
    PveIsPushed "SK0905" "pve nodes are configured by push"
        "Nodes of type `pve` are configured by push, whatever their mode."
    Shadowed "SK0906" "document shadowed"
        "The same document exists twice, and one of them is not used: the one under `v2/`, the one that ends in `.yml`, or plain secrets with the same content as the encrypted ones."
    RetiredDirectory "SK0907" "retired directory"
        "The directory belongs to an older layout and is ignored."
    HostnameUnused "SK0908" "host name of the spec not used"
        "A node's host name is its name in the manifest, so that one spec can serve many nodes."
    NoKeys "SK0909" "no SSH keys"
        "The site has no SSH keys, so only homestak itself can log in to its nodes, with its own key."
    UnknownFile "SK0910" "file ignored"
        "The file is in a directory of documents, but its name does not end in `.yaml` or `.yml`."
    BuiltInDefault "SK0912" "built-in default used"
        "Neither the document nor the site sets a value, so the built-in default is used."
    UnpinnedImage "SK0920" "image is not pinned"
        "The image has no checksum, or its URL is that of the latest release: the download can change at any time. Use the URL of a dated release and its checksum."
    NoEffect "SK0921" "key has no effect"
        "The key is validated and has no effect in this version."
    NameAssumed "SK0911" "name taken from the file"
        "The manifest has no `name`; the file's name is used."
}

#[cfg(test)]
mod tests {
    use super::Code;

    #[test]
    fn codes_are_unique() {
        let mut ids: Vec<_> = Code::ALL.iter().map(|code| code.id()).collect();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), Code::ALL.len());
    }
}
