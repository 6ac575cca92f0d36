//! "Did you mean …?"

/// Returns the nearest of `names`, if it is at most two edits away and longer than that distance.
pub fn nearest<'a>(typed: &str, names: &[&'a str]) -> Option<&'a str> {
    if typed.len() > 64 {
        return None;
    }
    names
        .iter()
        .map(|name| (strsim::osa_distance(typed, name), *name))
        .filter(|(distance, name)| *distance <= 2 && *distance < name.len())
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, name)| name)
}

/// Returns the hint for a word that is none of `names`: the nearest one, or all of them.
pub fn or_all(typed: &str, names: &[&str]) -> String {
    match nearest(typed, names) {
        Some(name) => format!("did you mean {name}?"),
        None => format!("it is one of {}", names.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn near_misses_are_found_and_far_ones_are_not() {
        let names = ["password_file", "ttl", "wait"];
        assert_eq!(nearest("pasword_file", &names), Some("password_file"));
        assert_eq!(nearest("tll", &names), Some("ttl"));
        assert_eq!(nearest("xyz", &names), None);
        assert_eq!(nearest("", &names), None);
    }
}
