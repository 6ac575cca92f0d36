//! Requests for a lock that went unanswered, and may still arrive.
//!
//! A proxy that has taken a request may deliver it long after dlock gave it up, asked again over
//! another connection, or released. So the requests of a hold are numbered, and the server refuses
//! a number below that of a later request, or of the release.

use crate::lock::Token;

/// How many requests of each hold went unanswered, the one on its way included.
#[derive(Default)]
pub(super) struct Unanswered(Vec<(Token, u64)>);

impl Unanswered {
    /// Returns the number of the hold's next request: 1 if all earlier ones were answered.
    pub(super) fn next(&self, token: &Token) -> u64 {
        1 + self
            .0
            .iter()
            .find(|(of, _)| of == token)
            .map_or(0, |(_, count)| *count)
    }

    /// Notes that a request is sent.
    pub(super) fn sent(&mut self, token: &Token) {
        match self.0.iter_mut().find(|(of, _)| of == token) {
            Some((_, count)) => *count += 1,
            None => self.0.push((*token, 1)),
        }
    }

    /// Notes that the last request was answered.
    pub(super) fn answered(&mut self, token: &Token) {
        self.0.retain_mut(|(of, count)| {
            *count -= u64::from(of == token);
            *count > 0
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_unanswered_requests_raise_the_number() {
        let (mut unanswered, one, two) = (Unanswered::default(), Token::random(), Token::random());
        let mut numbers = Vec::new();
        for is_answered in [true, false, true, false, true] {
            numbers.push(unanswered.next(&one));
            unanswered.sent(&one);
            if is_answered {
                unanswered.answered(&one);
            }
        }
        assert_eq!(
            (numbers, unanswered.next(&one), unanswered.next(&two)),
            (vec![1, 1, 2, 2, 3], 3, 1)
        );
    }
}
