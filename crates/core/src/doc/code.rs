//! The stable codes of diagnostics, each with its explanation.
//!
//! In: nothing. Out: [`Code`], the table behind `homestak explain` and the reference page.
//! Never: a code changes its meaning; a retired one is not used again.

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

            /// Returns the explanation: what it means and how to mend it.
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
        "Documents are UTF-8 text. The file holds bytes or control characters that text does not have."
    TooLarge "SK0103" "file is too large"
        "A document may have up to 16 MiB. Split it."
    Syntax "SK0104" "not valid YAML"
        "The text could not be read as YAML from this place on. Nothing behind it was checked."
    DuplicateKey "SK0105" "key written twice"
        "A mapping holds the same key twice. Some readers take the first, some the last, so it is refused."
    TooDeep "SK0106" "nested too deeply"
        "Values are nested deeper than any document needs. This guards against hostile input."
    TooManyValues "SK0107" "too many values"
        "The document holds more values than any document needs, counting aliases at each use. This guards against YAML bombs."
    SeveralDocuments "SK0108" "more than one document"
        "A file holds one document. A second `---` starts another one."
    KeyNotText "SK0109" "key is not text"
        "Keys are plain text. Lists and mappings cannot be keys."
    Tag "SK0110" "unsupported tag"
        "Only the tags of plain YAML are read. Application tags such as `!vault` or `!!python/object` are refused."
    EmptyDocument "SK0111" "document is empty"
        "The file holds no value. Write the document or delete the file."

    // Structure: keys, types, values.
    UnknownKey "SK0201" "unknown key"
        "The key does not exist at this place. It is not ignored, because a misspelt key would be silently without effect."
    WrongType "SK0202" "wrong type"
        "The value is of another type than the key takes, for example text where a list belongs."
    MissingKey "SK0203" "missing key"
        "A key that the document cannot do without is not there."
    UnknownChoice "SK0204" "not one of the choices"
        "The key takes one of a few words, and this is not one of them."
    BareYesNo "SK0205" "bare yes or no"
        "YAML readers disagree on whether a bare `yes`, `no`, `on` or `off` is text or a boolean. Quote it where text is meant; write true or false where a boolean is meant."
    OutOfRange "SK0206" "number out of range"
        "The number is smaller or larger than the key takes."
    Malformed "SK0207" "malformed value"
        "The text does not have the form the key takes, for example an address, a duration or a checksum."
    Empty "SK0208" "empty value"
        "The key is there with nothing in it, and nothing makes no sense here."
    InvalidName "SK0209" "invalid name"
        "Names of nodes become host names: lower-case letters, digits and hyphens, starting with a letter, up to 63 characters. Names of documents and regions follow the same rule, with dots and underscores allowed."
    SchemaVersion "SK0210" "unsupported schema version"
        "The document is written for another schema version than this program reads."
    ManifestV1 "SK0211" "manifest of schema version 1"
        "Manifests with `levels` are no longer read. `homestak manifest migrate FILE` writes the same topology as `nodes`."
    WrongNodeType "SK0212" "key of another node type"
        "The key belongs to another type of node: `template` and `unprivileged` to `ct`, `hardware` and `access.api` to `pve`, `image` to all but `ct`."
    Repeated "SK0213" "listed twice"
        "The list names the same thing twice."

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
        "`peers` names something that is not a node of this manifest."
    NoSuchHub "SK0309" "no such hub"
        "`hub` names something that is not a node of this manifest."
    NoSuchRegion "SK0310" "no such region"
        "`region` or `links` name a region that `regions` does not list."
    NoSuchHost "SK0311" "no such host"
        "`host` names something that is neither in `nodes/` nor in `hosts/`."
    NoSuchNetwork "SK0312" "no such network"
        "`network` names something that is not under `networks` in `site.yaml`."
    NoSuchManifest "SK0313" "no such manifest"
        "There is no manifest of that name in the site."
    MissingImage "SK0314" "no image or template"
        "A node needs an image (`vm`, `pve`, `k3s`) or a template (`ct`), of its own or from the defaults in `site.yaml`."
    MissingPreset "SK0315" "no preset"
        "A node needs a size: `preset`, of its own or from the defaults in `site.yaml`."

    // The graph.
    DuplicateNode "SK0401" "node defined twice"
        "Two nodes of the manifest have the same name. Names are identities: host name, token, state."
    Cycle "SK0402" "parents form a cycle"
        "Each of these nodes would have to exist before the other. Break the cycle at one of the places shown."
    CannotHost "SK0403" "parent cannot host"
        "Children run on a hypervisor: a node of type `pve`, or a `vm` whose spec has `config.pve` or the package `proxmox-ve`."
    PatternMismatch "SK0404" "pattern contradicts the graph"
        "The written pattern and the shape of the graph disagree. Change one of them, or leave `pattern` out and it is derived."
    BadPeer "SK0405" "impossible peer"
        "A node cannot be its own peer, nor the peer of a node that it runs on."
    BadHub "SK0406" "impossible hub"
        "A hub-spoke manifest has one hub, at the top, and at least one spoke."
    BadRegion "SK0407" "impossible region"
        "Regions have at least one node each, and a child lives in the region of its parent."
    BadLink "SK0408" "impossible link"
        "A link joins two different regions, and each pair is linked once."
    BadHost "SK0409" "impossible host"
        "A child runs where its parent runs, so it cannot name a host of its own."

    // Numbers and addresses.
    DuplicateVmid "SK0501" "vmid used twice"
        "Two guests of one host would have the same id."
    OutsideNetwork "SK0502" "address outside its network"
        "The address or gateway does not lie in the network it belongs to."
    DuplicateAddress "SK0503" "address used twice"
        "Two machines would have the same address."
    UnusableAddress "SK0504" "address cannot be used"
        "The address is the network's own, its broadcast address, its gateway, or not a unicast address."

    // Secrets.
    PlaintextSecrets "SK0601" "plaintext secrets in git"
        "`secrets.yaml` is tracked by git and not encrypted. Remove it from the index and commit the encrypted form; secrets that were pushed must be replaced."
    OpenPermissions "SK0602" "secrets readable by others"
        "The secrets file can be read by other users. Set its mode to 0600."
    Sealed "SK0603" "secrets cannot be opened"
        "The encrypted secrets could not be opened: no key fits, or the file was changed after it was encrypted."
    SigningKey "SK0604" "signing key malformed"
        "`auth.signing_key` is 64 hexadecimal digits (32 bytes)."
    NotSealed "SK0605" "sealed name, plain content"
        "A file whose name ends in `.enc` is committed in the belief that it is sealed, and this one is not. Seal it with `homestak secrets encrypt --in-place FILE`; secrets that were pushed must be replaced."
    SecretsDiffer "SK0606" "plain and sealed secrets differ"
        "`secrets.yaml` and `secrets.yaml.enc` are both there and do not have the same content, or could not be compared because one of them cannot be opened. Using either could bring back a secret that was removed from the other, so neither is used. Remove the plain file, or seal it again and then remove it."

    // Safety.
    SudoNeedsPassword "SK0701" "sudo without a password to give"
        "Users of a spec have keys and no passwords. Under a posture whose sudo asks for a password (`nopasswd: false`, the default), `sudo: true` would give them a right that they could never use. The user that homestak itself logs in as is not affected: it is never asked."
    UncheckedSource "SK0702" "image over plain HTTP without a checksum"
        "Anybody between the host and the server could replace the image. Give its checksum, or an address that begins with `https://`."

    // Notices: the document is used, and something is worth knowing.
    OldName "SK0901" "old name"
        "The name still works. Write the new one."
    NameDiffers "SK0902" "name and file differ"
        "The file's name is the document's identity; the name inside differs."
    AssumedVersion "SK0903" "schema version assumed"
        "The document does not say its schema version; the current one is assumed."
    ParentIsHost "SK0904" "parent is the host itself"
        "`parent` names the machine the manifest runs on. Nodes without a parent run there anyway."
    PveIsPushed "SK0905" "pve nodes are configured by push"
        "Nodes of type `pve` are configured by push, whatever mode is written."
    Shadowed "SK0906" "document shadowed"
        "The same document exists twice: in the flat layout and under `v2/`, where the flat one is used, or as plain and as sealed secrets with the same content, where the sealed ones are used."
    RetiredDirectory "SK0907" "retired directory"
        "The directory belongs to an older layout and is not read."
    HostnameUnused "SK0908" "host name of the spec not used"
        "A node's host name is its name in the manifest, so that one spec can serve many nodes."
    NoKeys "SK0909" "no SSH keys"
        "The site has no SSH keys, so nobody could log in to the node with a key."
    UnknownFile "SK0910" "file not read"
        "The file is in a directory of documents and is not one: documents end in `.yaml` or `.yml`."
    BuiltInDefault "SK0912" "built-in default used"
        "Nothing was named and the site has no default, so the built-in one is used."
    UnpinnedImage "SK0920" "image that can change"
        "The image has no checksum, or its address names the latest one: what is fetched can change from day to day, and is not compared with anything. Name a dated release and its checksum."
    NoEffect "SK0921" "key without effect"
        "The key is read and checked, and nothing acts on it yet. It can stay: a later version may use it."
    NameAssumed "SK0911" "name taken from the file"
        "The manifest has no `name`; the file's name is used."
}

#[cfg(test)]
mod tests {
    use super::Code;

    #[test]
    fn every_code_has_its_own_number() {
        let mut ids: Vec<_> = Code::ALL.iter().map(|code| code.id()).collect();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), Code::ALL.len());
    }
}
