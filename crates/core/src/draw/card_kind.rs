//! The kinds of cards with their class names and colours in all formats.

/// The kind of a card.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum CardKind {
    /// A host, at the top of the diagram.
    Host,
    Pve,
    K3s,
    Vm,
    Ct,
    Other,
}

/// The colours of one kind on one background.
pub(super) struct Colours {
    pub(super) fill: &'static str,
    pub(super) stroke: &'static str,
    pub(super) text: &'static str,
}

const fn colours(fill: &'static str, stroke: &'static str, text: &'static str) -> Colours {
    Colours { fill, stroke, text }
}

impl CardKind {
    /// All kinds, in the order of the legend.
    pub(super) const ALL: [Self; 6] = [
        Self::Host,
        Self::Pve,
        Self::K3s,
        Self::Vm,
        Self::Ct,
        Self::Other,
    ];

    pub(super) fn of(kind: &str) -> Self {
        match kind {
            "pve" => Self::Pve,
            "k3s" => Self::K3s,
            "vm" => Self::Vm,
            "ct" => Self::Ct,
            _ => Self::Other,
        }
    }

    /// The class name in SVG and Mermaid.
    pub(super) fn class(self) -> &'static str {
        match self {
            Self::Host => "host",
            Self::Pve => "pve",
            Self::K3s => "k3s",
            Self::Vm => "vm",
            Self::Ct => "ct",
            Self::Other => "other",
        }
    }

    /// The label in the legend.
    pub(super) fn label(self) -> &'static str {
        match self {
            Self::Host => "host",
            Self::Pve => "Proxmox VE",
            Self::K3s => "k3s",
            Self::Vm => "VM",
            Self::Ct => "container",
            Self::Other => "other",
        }
    }

    /// Colours on a light background. Text on fill has a contrast above 4.5.
    pub(super) fn light(self) -> Colours {
        match self {
            Self::Host => colours("#f1f5f9", "#64748b", "#334155"),
            Self::Pve => colours("#fff4e8", "#ea580c", "#9a3412"),
            Self::K3s => colours("#f5f0ff", "#7c3aed", "#5b21b6"),
            Self::Vm => colours("#eef5ff", "#2563eb", "#1e40af"),
            Self::Ct => colours("#eafaf5", "#0d9488", "#115e59"),
            Self::Other => colours("#f7f6f5", "#78716c", "#44403c"),
        }
    }

    /// Colours on a dark background.
    pub(super) fn dark(self) -> Colours {
        match self {
            Self::Host => colours("#1b222c", "#8b98a9", "#cbd5e1"),
            Self::Pve => colours("#2e1d10", "#f08a3c", "#fdba74"),
            Self::K3s => colours("#221a3a", "#a78bfa", "#c9b8ff"),
            Self::Vm => colours("#13233f", "#6aa2f8", "#a9cbff"),
            Self::Ct => colours("#0d2b28", "#2dbfae", "#7be3d5"),
            Self::Other => colours("#242220", "#a8a29e", "#d6d3d1"),
        }
    }
}
