//! The built-in stock site. A test compares it with `stock-site/`.

macro_rules! stock {
    ($($path:literal)*) => {
        /// Files of the stock site: path and text.
        pub const FILES: &[(&str, &str)] =
            &[$(($path, include_str!(concat!("../../../stock-site/", $path))),)*];
    };
}

stock! {
    "README.md"
    "gitignore"
    "images/debian-12-standard.yaml"
    "images/debian-12.yaml"
    "images/debian-13-standard.yaml"
    "images/debian-13.yaml"
    "images/pve-9.yaml"
    "manifests/cluster.yaml"
    "manifests/edge.yaml"
    "manifests/multi-site.yaml"
    "manifests/n1-pull.yaml"
    "manifests/n1-push.yaml"
    "manifests/n2-mixed.yaml"
    "manifests/n2-tiered.yaml"
    "manifests/n3-deep.yaml"
    "manifests/workers.yaml"
    "postures/dev.yaml"
    "postures/local.yaml"
    "postures/prod.yaml"
    "postures/stage.yaml"
    "presets/vm-large.yaml"
    "presets/vm-medium.yaml"
    "presets/vm-small.yaml"
    "presets/vm-xlarge.yaml"
    "presets/vm-xsmall.yaml"
    "secrets.yaml.example"
    "site.yaml"
    "specs/base.yaml"
    "specs/pve.yaml"
}
